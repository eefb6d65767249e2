"""Find a native library, load it once, and know what it is.

A library is one file that has everything (xllamacpp's extension module) or a folder of separate ones (libggml-base,
libggml-cpu, libggml and, for a client, libllama). It is loaded by its real path and cached by it: two paths to one
libllama once gave two copies of it that shared one ggml.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from wireherd import config
from wireherd.errors import LibraryNotFound, UnknownBuild
from wireherd.ggml import builds, llama_structs, memory
from wireherd.ggml.check import check_layouts
from wireherd.ggml.functions import GGML, Functions, address
from wireherd.ggml.handles import NativeDevice
from wireherd.ggml.image import Image, image_of
from wireherd.ggml.llama_functions import LLAMA
from wireherd.ggml.logs import NativeLog
from wireherd.ggml.structs import ABIS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

_PARTS: Final = ("ggml-base", "ggml-cpu", "ggml", "llama")
_TYPE_NAME: Final = re.compile(r"[a-z][a-z0-9_]*[A-Z]?|DEPRECATED|TYPE_[A-Z0-9_]+ REMOVED.*")
_OP_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*")


class Names(NamedTuple):
    """Names by number, as the library itself spells them: `ops[29] == "MUL_MAT"`."""

    ops: tuple[str, ...]
    unary_ops: tuple[str, ...]
    glu_ops: tuple[str, ...]
    types: tuple[str, ...]


class Library:
    """A loaded ggml, perhaps with llama.cpp. Made by `load`, never unloaded."""

    def __init__(self, path: Path, named: Path, files: list[Path]) -> None:
        folder = files[0].parent
        #: the file or folder that was loaded, symbolic links resolved
        self.path = path
        handles = _open(files)
        #: the typed functions, by their C names
        self.c = Functions(str(path), handles, GGML)
        reg = self._cpu_reg(folder)
        #: `GGML_BACKEND_API_VERSION` of the library: 2 or 3
        self.api = memory.read_i32(reg)
        if self.api not in ABIS:
            raise UnknownBuild(
                f"{path} has ggml backend API {self.api}, and this release knows 2 and 3 only: "
                f"install {builds.SUPPORTED}",
            )
        #: the struct classes for that API
        self.abi = ABIS[self.api]
        self._image = self._find_image(folder, files)
        self._cpu_device: int = self.c.ggml_backend_reg_dev_get(reg, 0)
        check_layouts(str(path), self.c, self.abi, self._image, self._cpu_device)
        self.ggml_version = (self.c.ggml_version() or b"").decode() if self.c.has("ggml_version") else ""
        self.ggml_commit = (self.c.ggml_commit() or b"").decode() if self.c.has("ggml_commit") else ""
        #: label of the llama.cpp build ("b11549"), None if there is no llama.cpp or nothing tells its build
        self.llama_build: str | None = None
        #: why the llama.cpp part cannot be used, as a sentence; "" if it can
        self.llama_refusal = self._adopt_llama((named, folder), handles)
        #: short name of the build, for people and logs: "b11549" or "ggml 0.20.2"
        self.build = self.llama_build or f"ggml {self.ggml_version or 'of unknown version'}"
        self._names: Names | None = None
        self._sizes: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._started = False
        #: what the library says, and its last error lines
        self.log = NativeLog(self.c)

    def _cpu_reg(self, folder: Path) -> int:
        """The CPU registry; in a build whose backends are plug-ins they must be loaded from the folder first."""
        if self.c.has("ggml_backend_cpu_reg"):
            reg: int = self.c.ggml_backend_cpu_reg()
            return reg
        if self.c.has("ggml_backend_load_all_from_path"):
            self.c.ggml_backend_load_all_from_path(str(folder).encode())
        reg = self.c.ggml_backend_reg_by_name(b"CPU")
        if not reg:
            raise LibraryNotFound(f"{self.path} has no CPU backend: put libggml-cpu beside it")
        return reg

    def _find_image(self, folder: Path, files: list[Path]) -> Image:
        parts = set(files)
        if len(files) > 1:
            parts.update(entry.resolve() for entry in folder.iterdir() if "ggml" in entry.name and entry.is_file())
        anchors = [address(self.c.ggml_init), address(self.c.ggml_backend_reg_by_name)]
        if self.c.has("ggml_backend_cpu_reg"):
            anchors.append(address(self.c.ggml_backend_cpu_reg))
        return image_of(sorted(parts), anchors)

    def _adopt_llama(self, folders: Iterable[Path], handles: list[ctypes.CDLL]) -> str:
        if not any(hasattr(handle, "llama_backend_init") for handle in handles):
            return f"{self.path} has no llama.cpp, only ggml: a client needs {builds.SUPPORTED}"
        self.llama_build = builds.llama_label(folders, self.ggml_commit)
        if self.llama_build not in builds.KNOWN_LLAMA:
            return builds.refusal(str(self.path), self.llama_build)
        try:
            self.c.bind(LLAMA)
            llama_structs.check_llama(str(self.path), self.c, self.llama_build)
        except UnknownBuild as error:
            return str(error)
        return ""

    @property
    def has_llama(self) -> bool:
        """Whether the llama.h part can be used."""
        return not self.llama_refusal

    def start_llama(self) -> None:
        """`llama_backend_init`, once a process.

        Raises:
            UnknownBuild: there is no llama.cpp here that this release knows.
        """
        if self.llama_refusal:
            raise UnknownBuild(self.llama_refusal)
        if not self._started:
            self._started = True
            self.c.llama_backend_init()

    def numbering(self) -> Names:
        """The library's operation, unary, GLU and type names by number."""
        if self._names is None:
            self._names = Names(
                self._walk(self.c.ggml_op_name, _OP_NAME),
                self._walk(self.c.ggml_unary_op_name, _OP_NAME),
                self._walk(self.c.ggml_glu_op_name, _OP_NAME),
                self._walk(self.c.ggml_type_name, _TYPE_NAME),
            )
        return self._names

    def _walk(self, name_of: Callable[[int], int], pattern: re.Pattern[str]) -> tuple[str, ...]:
        """Names from 0 up to the first that is none.

        No exported function tells how many there are and none looks at its bounds; the tables lie among other
        constants, so the first entry past the end is NULL or no pointer into the library or no such name.
        """
        found: list[str] = []
        while (pointer := name_of(len(found))) and self._image.contains(pointer):
            name = memory.read_text(pointer, 64)
            if not pattern.fullmatch(name):
                break
            found.append(name)
        return tuple(found)

    def type_sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(elements a block, bytes a block) by type number, i8[n] each; 0 where a number has no type."""
        if self._sizes is None:
            count = len(self.numbering().types)
            self._sizes = (
                np.array([self.c.ggml_blck_size(number) for number in range(count)], np.int64),
                np.array([self.c.ggml_type_size(number) for number in range(count)], np.int64),
            )
        return self._sizes

    def devices(self) -> list[NativeDevice]:
        """All devices of all backends of the library, the CPU too; this may initialise GPU drivers."""
        c = self.c
        return [
            NativeDevice(self, c.ggml_backend_reg_dev_get(reg, number))
            for reg in (c.ggml_backend_reg_get(place) for place in range(c.ggml_backend_reg_count()))
            for number in range(c.ggml_backend_reg_dev_count(reg))
        ]

    def cpu_device(self) -> NativeDevice:
        """The CPU device, without a look at any other."""
        return NativeDevice(self, self._cpu_device)

    def __repr__(self) -> str:
        return f"<Library {self.build} at {self.path}>"


_loaded: dict[Path, Library] = {}
_lock = threading.Lock()


def load(path: str | Path | None = None) -> Library:
    """Load a library, or return it if it is loaded already.

    Args:
        path: a library file, or a folder that holds one or holds libggml-base, libggml-cpu, libggml and perhaps
            libllama. None means what WIREHERD_GGML names, else the installed xllamacpp (llama-cpp-py-sync on Windows).

    Raises:
        LibraryNotFound: nothing is there, or it cannot be loaded.
        UnknownBuild: it is no ggml, or one whose layout this release does not know.
    """
    chosen = Path(path) if path is not None else config.ggml_path() or _installed()
    real, named, files = _resolve(chosen)
    with _lock:
        found = _loaded.get(real)
        if found is None:
            found = _loaded[real] = Library(real, named, files)
        return found


def _installed() -> Path:
    """The library of the wheel that this package depends on."""
    names = ("llama_cpp_py_sync",) if sys.platform == "win32" else ("xllamacpp", "llama_cpp_py_sync")
    for name in names:
        spec = importlib.util.find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            return Path(place)
    raise LibraryNotFound(f"no ggml library is installed: install {builds.SUPPORTED}, or set {config.GGML_VARIABLE}")


def _resolve(path: Path) -> tuple[Path, Path, list[Path]]:
    """(what names the library for good, the folder as it was named, the files to load in that order)."""
    path = path.expanduser()
    if not path.exists():
        raise LibraryNotFound(f"there is no library at {path}")
    if path.is_file():
        if not re.match(r"(lib)?(ggml|llama)\b", path.name):
            return path.resolve(), path.absolute().parent, [path.resolve()]
        path = path.parent
    for folder in (path, path / "lib64", path / "lib", path / "bin"):
        parts = [_part(folder, name) for name in _PARTS]
        if parts[0] is not None:
            return folder.resolve(), folder.absolute(), [part for part in parts if part is not None]
    whole = sorted(entry for entry in path.glob("xllamacpp*") if entry.suffix in {".so", ".pyd", ".dylib"})
    if whole:
        return whole[0].resolve(), path.absolute(), [whole[0].resolve()]
    raise LibraryNotFound(f"the folder {path} holds no ggml library: it needs libggml-base and libggml-cpu")


def _part(folder: Path, name: str) -> Path | None:
    for pattern in (f"lib{name}.so.0", f"lib{name}.so", f"lib{name}.0.dylib", f"lib{name}.dylib", f"{name}.dll"):
        if (folder / pattern).is_file():
            return (folder / pattern).resolve()
    return None


def _open(files: list[Path]) -> list[ctypes.CDLL]:
    """Load the files; symbols stay local to each library, so that two builds can live in one process."""
    handles = []
    for file in files:
        try:
            handles.append(ctypes.CDLL(str(file)))
        except OSError as error:
            raise LibraryNotFound(f"the library {file} cannot be loaded: {error}") from error
    return handles
