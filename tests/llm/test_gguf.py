"""The header reader agrees with gguf's own, and no damage gets past it as anything but one sentence."""

import contextlib
import struct

import gguf as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wireherd import ggml
from wireherd.errors import ModelError, UsageError
from wireherd.llm import gguf


def test_agrees_with_the_reference(tiny_path):
    header = gguf.read_header(tiny_path)
    reader = reference.GGUFReader(tiny_path)
    assert header.version == 3
    assert header.n_layer == 2
    assert header.meta["general.architecture"] == "llama"
    assert header.data_start == reader.data_offset
    assert [(tensor.name, tensor.ne) for tensor in header.tensors] == [
        (tensor.name, tuple(int(extent) for extent in tensor.shape)) for tensor in reader.tensors
    ]
    sizes = ggml.load().type_sizes()
    assert [gguf.tensor_bytes(tensor, sizes) for tensor in header.tensors] == [
        int(tensor.n_bytes) for tensor in reader.tensors
    ]
    gguf.check_whole(header, sizes)


@settings(max_examples=60)
@given(share=st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_noticed(tiny_path, tmp_path_factory, share):
    raw = tiny_path.read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "cut.gguf"
    cut.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(ModelError):
        gguf.check_whole(gguf.read_header(cut), ggml.load().type_sizes())


@settings(max_examples=150)
@given(data=st.data())
def test_damage_gives_a_sentence_or_a_header(tiny_path, tmp_path_factory, data):
    raw = bytearray(tiny_path.read_bytes()[:12_000])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    broken = tmp_path_factory.mktemp("broken") / "broken.gguf"
    broken.write_bytes(raw)
    with contextlib.suppress(ModelError):
        gguf.check_whole(gguf.read_header(broken), ggml.load().type_sizes())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a GGUF"),
        (b"GG", "not a GGUF"),
        (b"GGUF", "cut short"),
        (b"GGUF" + (99).to_bytes(4, "little"), "version 99"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16, "cut short"),
        (b"text " * 100, "not a GGUF"),
    ],
)
def test_wrong_files(tmp_path, content, words):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        gguf.read_header(path)


@pytest.mark.parametrize(("kind", "layout", "layers"), [(4, "<I", 0xFFFFFFFF), (5, "<i", -1)])
def test_a_senseless_number_of_layers(tiny_path, tmp_path, kind, layout, layers):
    """Whoever plans by it would take memory for as many."""
    path = _with_layers(tiny_path, tmp_path, kind, layout, layers)
    with pytest.raises(ModelError, match=f"damaged .* {layers} layers"):
        gguf.read_header(path)


def test_a_number_of_layers_that_is_no_whole_number(tiny_path, tmp_path):
    assert gguf.read_header(_with_layers(tiny_path, tmp_path, 6, "<f", float("inf"))).n_layer == 0


def _with_layers(original, folder, kind, layout, layers):
    raw = bytearray(original.read_bytes())
    key = b"llama.block_count"
    at = raw.index(key) + len(key)
    raw[at : at + 8] = struct.pack("<I", kind) + struct.pack(layout, layers)
    path = folder / "layers.gguf"
    path.write_bytes(raw)
    return path


def test_no_file(tmp_path):
    with pytest.raises(UsageError, match="no model file"):
        gguf.check_file(tmp_path / "x.gguf")
    with pytest.raises(UsageError, match="is a folder"):
        gguf.check_file(tmp_path)


def test_parts_of_a_split_model(tmp_path):
    paths = [tmp_path / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for path in paths[:2]:
        path.write_bytes(b"GGUF")
    for alone in (tmp_path / "plain.gguf", tmp_path / "m-00001-of-00000.gguf"):
        assert gguf.split_paths(alone) == [alone]
    with pytest.raises(ModelError, match=r"split over 3 files and .*00003-of-00003\.gguf is missing"):
        gguf.split_paths(paths[0])
    paths[2].write_bytes(b"GGUF")
    assert gguf.split_paths(paths[0]) == paths
    with pytest.raises(UsageError, match=r"name its first part, m-00001-of-00003\.gguf"):
        gguf.split_paths(paths[1])
