from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from wireherd import ggml
from wireherd.errors import GgmlFailed, LibraryNotFound, UnknownBuild
from wireherd.ggml import builds, check, image, library, llama_structs, memory
from wireherd.ggml import structs as structs_module
from wireherd.ggml.enums import Caps, DeviceType
from wireherd.ggml.library import Library


@pytest.fixture(autouse=True)
def listening():
    """A library looked at again takes the log over."""
    yield
    ggml.load().log.listen()


def afresh(lib: Library, named: Path | None = None) -> Library:
    """The same file, looked at again, past the cache."""
    return Library(lib.path, named or lib.path.parent, [lib.path])


def test_the_installed_wheel_is_known(installed):
    assert installed.api == 3
    assert installed.build == installed.llama_build == "b11549"
    assert installed.has_llama
    assert installed.llama_refusal == ""
    assert "b11549" in repr(installed)


def test_a_library_is_loaded_once_however_it_is_named(installed, tmp_path):
    link = tmp_path / "link.so"
    link.symlink_to(installed.path)
    assert ggml.load() is ggml.load(installed.path) is ggml.load(installed.path.parent) is ggml.load(link) is installed


def test_the_environment_names_the_library(installed, monkeypatch):
    monkeypatch.setenv("WIREHERD_GGML", "/nowhere/at/all")
    with pytest.raises(LibraryNotFound, match="/nowhere/at/all"):
        ggml.load()
    monkeypatch.setenv("WIREHERD_GGML", str(installed.path))
    assert ggml.load() is installed


@pytest.mark.parametrize("kind", ["nothing", "an empty folder", "no library at all"])
def test_what_cannot_be_loaded_is_one_sentence(kind, tmp_path):
    path = tmp_path / "thing"
    if kind == "an empty folder":
        path.mkdir()
    elif kind == "no library at all":
        path.write_text("words")
    with pytest.raises(LibraryNotFound, match=re.escape(str(path))) as caught:
        ggml.load(path)
    assert "\n" not in str(caught.value)


def test_another_library_is_refused_with_what_would_do():
    other = next(Path(sysconfig.get_config_var("DESTSHARED")).glob("_ctypes*.so"))
    with pytest.raises(
        UnknownBuild, match=r"is no ggml library this release can use, for it lacks .*: install xllamacpp"
    ):
        ggml.load(other)


def test_an_unknown_api_is_refused_with_the_known_ones(installed, monkeypatch):
    monkeypatch.setattr(library, "ABIS", {2: structs_module.ABIS[2]})
    with pytest.raises(UnknownBuild, match="has ggml backend API 3, and this release knows 2 and 3 only"):
        afresh(installed)


@pytest.mark.parametrize("part", ["BufferType", "Device", "Backend", "Buffer", "Reg"])
def test_a_layout_that_does_not_fit_is_refused(installed, monkeypatch, part):
    """Vtables with one slot too many or too few are told apart from the right ones."""
    right = structs_module.ABIS[3]
    kind = getattr(right, part)
    slots = kind.iface.size // 8
    for count in (slots - 1, slots + 1):
        interface = type(
            "Interface", (structs_module.ctypes.Structure,), {"_fields_": [("slots", structs_module.POINTER_T * count)]}
        )
        fields = [(name, interface if name == "iface" else kind) for name, kind in kind._fields_]
        wrong = type(part, (structs_module.ctypes.Structure,), {"_fields_": fields})
        monkeypatch.setattr(library, "ABIS", {3: dataclasses.replace(right, **{part: wrong})})
        if part == "BufferType" and count > slots:
            continue  # the word after the slots is its device, NULL in this build: one more slot looks unfilled
        if part == "Reg" and count > slots:
            continue  # likewise its context
        with pytest.raises(UnknownBuild, match=r"says it has ggml backend API 3, but its .* is laid out otherwise"):
            afresh(installed)


def test_a_tensor_of_another_size_is_refused(installed, monkeypatch):
    monkeypatch.setattr(check, "TENSOR_SIZE", 344)
    with pytest.raises(UnknownBuild, match="its tensor is laid out otherwise"):
        afresh(installed)


def test_another_llama_build_keeps_its_ggml_but_not_its_llama(installed, monkeypatch, tmp_path):
    folder = tmp_path / "xllamacpp"
    folder.mkdir()
    (tmp_path / "xllamacpp-2026.11.12000.dist-info").mkdir()
    other = afresh(installed, folder)
    assert other.llama_build == "b12000"
    assert not other.has_llama
    assert "is llama.cpp b12000, and this release knows the llama.h of b11548 and b11549 only" in other.llama_refusal
    with pytest.raises(UnknownBuild, match="b12000"):
        other.start_llama()
    with pytest.raises(GgmlFailed, match="has no function llama_decode"):
        other.c.llama_decode(0)
    assert other.cpu_device().type == DeviceType.CPU


def test_a_library_without_a_label_keeps_its_ggml(installed, tmp_path):
    other = afresh(installed, tmp_path)
    # the real path's folder is looked at too, and there the wheel's metadata lies
    assert other.llama_build == "b11549"
    assert builds.llama_label([tmp_path], "unknown") is None
    assert "of a build that nothing names" in builds.refusal("x.so", None)


def test_labels():
    assert builds.llama_label([], "781dbc5ac") == "b11548"
    assert builds.llama_label([], "781dbc5ac-dirty") == "b11548"
    assert builds.llama_label([], "781") is None
    assert builds.llama_label([], "") is None


def test_a_label_from_the_version_file(tmp_path):
    (tmp_path / "_version.py").write_text('__version__ = "0.11548"\n__llama_cpp_tag__ = "b11548"\n')
    assert builds.llama_label([tmp_path], "unknown") == "b11548"


@pytest.mark.parametrize("field", ["n_gpu_layers", "devices", "load_mtp"])
def test_defaults_are_read_back(installed, monkeypatch, field):
    known = llama_structs.DEFAULTS["b11548"]
    wrong = dataclasses.replace(known, model={**known.model, field: 77})
    monkeypatch.setitem(llama_structs.DEFAULTS, "b11548", wrong)
    other = afresh(installed)
    assert not other.has_llama
    assert f"differs from that build's in {field}" in other.llama_refusal


def test_the_size_of_what_is_returned_is_measured(installed):
    """On x86-64 at least: a struct one field longer or shorter than C's is noticed."""
    function = installed.c.llama_context_default_params
    right = llama_structs.ContextParams
    assert llama_structs._ends_right(function, right)
    if llama_structs.platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("the hidden pointer cannot be set here")
    longer = type(
        "Longer", (llama_structs.ctypes.Structure,), {"_fields_": [*right._fields_, ("more", llama_structs.P)]}
    )
    shorter = type("Shorter", (llama_structs.ctypes.Structure,), {"_fields_": right._fields_[:-1]})
    assert not llama_structs._ends_right(function, longer)
    assert not llama_structs._ends_right(function, shorter)


def test_names_by_number(lib):
    names = lib.numbering()
    assert names.ops[0] == "NONE"
    assert names.ops[-1] == "GLU"
    assert {"ADD", "MUL_MAT", "GET_ROWS", "SET_ROWS", "FLASH_ATTN_EXT"} <= set(names.ops)
    assert names.unary_ops[0] == "ABS"
    assert "SILU" in names.unary_ops
    assert names.glu_ops[:3] == ("REGLU", "GEGLU", "SWIGLU")
    assert names.types[:3] == ("f32", "f16", "q4_0")
    assert names.types[30] == "bf16"
    assert len(set(names.ops)) == len(names.ops)
    assert (len(names.ops), len(names.types)) == (101, 43)


def test_sizes_of_types(lib):
    blocks, sizes = lib.type_sizes()
    types = lib.numbering().types
    assert len(blocks) == len(sizes) == len(types)
    for name, block, size in (("f32", 1, 4), ("q4_0", 32, 18), ("q8_0", 32, 34), ("q4_K", 256, 144), ("i64", 1, 8)):
        number = types.index(name)
        assert (blocks[number], sizes[number]) == (block, size)
    assert blocks[types.index("DEPRECATED")] == 0


def test_devices(lib):
    devices = lib.devices()
    cpu = lib.cpu_device()
    assert [device.name for device in devices] == ["CPU"]
    assert devices[0].ptr == cpu.ptr
    assert cpu.type == DeviceType.CPU
    assert cpu.caps & Caps.PLAIN_ALLOC_SIZE
    assert not cpu.caps & Caps.ASYNC
    free, total = cpu.memory()
    assert 0 < free <= total
    assert cpu.description in repr(cpu)
    assert [kind.name for kind in cpu.extra_buffer_types()] in (["CPU_REPACK"], ["AMX", "CPU_REPACK"], [])


def test_the_image_tells_code_from_data(installed):
    found = image.image_of([installed.path], [])
    code = library.address(installed.c.ggml_init)
    assert found.is_code(code)
    name = installed.c.ggml_op_name(0)
    assert found.contains(name)
    assert not found.is_code(name)
    assert not found.contains(memory.address_of(bytearray(8)))
    assert not found.contains(0)


@pytest.mark.stock
def test_a_library_without_llama_says_so():
    from stock.get_stock import libggml

    lib = ggml.load(libggml().parent)  # the package's folder: the libraries lie in lib64
    assert (lib.api, lib.build, lib.has_llama) == (2, "ggml 0.20.2", False)
    with pytest.raises(UnknownBuild, match=r"has no llama\.cpp, only ggml: a client needs xllamacpp"):
        lib.start_llama()


@pytest.mark.stock
def test_a_newer_llama_in_separate_files_serves_a_worker():
    """In a process of its own: two sets of separate libraries in one would share one libggml-base."""
    from stock.get_stock import stock

    script = (
        "import sys; from wireherd import ggml; lib = ggml.load(sys.argv[1]);"
        "print(lib.api, lib.build, lib.has_llama, lib.devices()[0].name, len(lib.numbering().glu_ops)); print(lib.llama_refusal)"
    )
    folder = stock("8") / "llama_cpp_py_sync"
    ran = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    first, refusal = ran.stdout.splitlines()
    assert first == "3 b11739 False CPU 7"
    assert "b11739, and this release knows the llama.h of b11548 and b11549 only: install xllamacpp" in refusal
