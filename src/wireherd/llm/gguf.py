"""What a GGUF file says about itself, read without the native library: enough to check it and to explain a failure.

Format: `docs/gguf.md` of ggml. Header: magic "GGUF", version u32, tensor count u64, key-value count u64; then the
key-values, then one record a tensor (name, number of dimensions u32, dimensions u64, type u32, offset u64), padding
to `general.alignment`, data. The file is untrusted: every length is checked against the bytes that are there.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wireherd.errors import ModelError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_STRING: Final = 8
_ARRAY: Final = 9
_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_SPLIT: Final = re.compile(r"^(.*)-(\d{5})-of-(?!0{5})(\d{5})\.gguf$")
_LAYER: Final = re.compile(r"^blk\.(\d+)\.")
_MAX_DIMENSIONS: Final = 4
#: far above what llama.cpp itself takes (`LLAMA_MAX_LAYERS`)
_MAX_LAYERS: Final = 4096


#: (elements a block, bytes a block) by type number, i8 each; see `ggml.library.Library.type_sizes`
TypeSizes = tuple["NDArray[np.int64]", "NDArray[np.int64]"]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the file lists it; `offset` counts from the start of the data, `ne` has as many entries as stored."""

    name: str
    ne: tuple[int, ...]
    type: int
    offset: int

    @property
    def layer(self) -> int | None:
        """Number of the layer it belongs to; None for what stands before and after the layers."""
        found = _LAYER.match(self.name)
        return int(found.group(1)) if found else None


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Scalar and text metadata (arrays are left out), and the tensors of one file."""

    path: Path
    version: int
    meta: dict[str, int | float | bool | str]
    tensors: tuple[GgufTensor, ...]
    data_start: int

    @property
    def n_layer(self) -> int:
        """Number of layers (blocks); 0 if the file does not say."""
        value = self.meta.get(f"{self.meta.get('general.architecture', '')}.block_count", 0)
        return value if isinstance(value, int) else 0


class _Reader:
    """Cursor over the mapped file that refuses to leave it."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def number(self, layout: str) -> int | float | bool:
        size = struct.calcsize(layout)
        if self.at + size > len(self.data):
            raise _truncated(self.path)
        value: int | float | bool = struct.unpack_from(layout, self.data, self.at)[0]
        self.at += size
        return value

    def unsigned(self, layout: str) -> int:
        return int(self.number(layout))

    def skip(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise _truncated(self.path)
        self.at += size

    def text(self) -> str:
        size = self.unsigned("<Q")
        start = self.at
        self.skip(size)
        return self.data[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> int | float | bool | str | None:
        """Read one value; arrays are stepped over and give None."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            self._skip_array()
            return None
        if kind not in _SCALARS:
            raise ModelError(f"{self.path} is a damaged GGUF file: it has a value of unknown type {kind}")
        return self.number(_SCALARS[kind])

    def _skip_array(self) -> None:
        kind, count = self.unsigned("<I"), self.unsigned("<Q")
        if kind in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _STRING:
            unpack, data, at, end = struct.Struct("<Q").unpack_from, self.data, self.at, len(self.data) - 8
            for _ in range(count):  # a vocabulary has a quarter of a million
                if at > end:
                    raise _truncated(self.path)
                at += 8 + unpack(data, at)[0]
            self.at = at
            self.skip(0)
        else:
            raise ModelError(f"{self.path} is a damaged GGUF file: it has an array of unknown type {kind}")


def _truncated(path: Path) -> ModelError:
    return ModelError(f"{path} is cut short: it ends at {path.stat().st_size} bytes, before all of the model")


def check_file(path: Path) -> None:
    """Refuse early what cannot be a model: a cheap look at the first bytes.

    Raises:
        UsageError: there is no such file.
        ModelError: it cannot be read, or is no GGUF file of a known version.
    """
    if not path.exists():
        raise UsageError(f"there is no model file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a model file")
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise ModelError(f"cannot read the model file {path}: {error.strerror or error}") from error
    if head[:4] != MAGIC:
        raise ModelError(f"{path} is not a GGUF file")
    if len(head) < 8:
        raise _truncated(path)
    version = struct.unpack("<I", head[4:])[0]
    if version not in _VERSIONS:
        raise ModelError(f"{path} is a GGUF file of version {version}: versions 2 and 3 are known")


def split_paths(path: Path) -> list[Path]:
    """All files of the model that `path` is (the first part of), in order.

    Raises:
        UsageError: `path` is a later part of a split model.
        ModelError: a part is missing.
    """
    found = _SPLIT.match(path.name)
    if not found:
        return [path]
    stem, number, count = found.group(1), int(found.group(2)), int(found.group(3))
    paths = [path.with_name(f"{stem}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]
    if number != 1:
        raise UsageError(f"{path.name} is part {number} of a split model: name its first part, {paths[0].name}")
    missing = next((part for part in paths if not part.exists()), None)
    if missing:
        raise ModelError(f"the model is split over {count} files and {missing} is missing")
    return paths


def read_header(path: Path) -> GgufHeader:
    """Read metadata and tensor list of one file.

    Raises:
        UsageError: there is no such file.
        ModelError: it is no GGUF file, or it is damaged or cut short.
    """
    check_file(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data, path)
        reader.skip(4)
        version, n_tensors, n_values = reader.unsigned("<I"), reader.unsigned("<Q"), reader.unsigned("<Q")
        meta: dict[str, int | float | bool | str] = {}
        for _ in range(n_values):
            key = reader.text()
            value = reader.value(reader.unsigned("<I"))
            if value is not None:
                meta[key] = value
        tensors = tuple(_tensor(reader) for _ in range(n_tensors))
        alignment = meta.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ModelError(f"{path} is a damaged GGUF file: its alignment is {alignment!r}")
        start = -(-reader.at // alignment) * alignment
    header = GgufHeader(path, version, meta, tensors, start)
    if not 0 <= header.n_layer <= _MAX_LAYERS:
        raise ModelError(f"{path} is a damaged GGUF file: it says that it has {header.n_layer} layers")
    return header


def _tensor(reader: _Reader) -> GgufTensor:
    name = reader.text()
    dimensions = reader.unsigned("<I")
    if dimensions > _MAX_DIMENSIONS:
        raise ModelError(f"{reader.path} is a damaged GGUF file: tensor {name!r} has {dimensions} dimensions")
    ne = tuple(reader.unsigned("<Q") for _ in range(dimensions))
    return GgufTensor(name, ne, reader.unsigned("<I"), reader.unsigned("<Q"))


def tensor_bytes(tensor: GgufTensor, sizes: TypeSizes) -> int:
    """Size of a tensor's data."""
    blocks, bytes_each = sizes
    count = 1
    for extent in tensor.ne:
        count *= extent
    if tensor.type >= len(blocks) or int(blocks[tensor.type]) <= 0:
        return 0
    return count // int(blocks[tensor.type]) * int(bytes_each[tensor.type])


def check_whole(header: GgufHeader, sizes: TypeSizes) -> None:
    """Check that every tensor's data lies within the file.

    Raises:
        ModelError: the file is cut short.
    """
    length = header.path.stat().st_size
    for tensor in header.tensors:
        if header.data_start + tensor.offset + tensor_bytes(tensor, sizes) > length:
            raise ModelError(
                f"{header.path} is cut short: it ends at {length} bytes, before the data of tensor {tensor.name}"
            )
