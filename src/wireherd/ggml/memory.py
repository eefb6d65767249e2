"""Raw memory by address: the ways in which this package looks at memory that C owns.

Addresses are plain ints. Nothing here checks that an address is mapped: a wrong one is a segmentation fault,
so only addresses that ggml itself handed out may come here, never numbers from the network.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wireherd.ggml.structs import TENSOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

_READ = 0x100
_WRITE = 0x200
_FIRST = 8  # numpy refuses a NULL data pointer, so the views below begin one word in

_memory_view: Any = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_view.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_memory_view.restype = ctypes.py_object


class _AllTensors:
    """The whole 48-bit address space as overlapping tensor structs, one at every multiple of 8.

    Nothing is touched before it is indexed; one fancy index then copies structs from anywhere at memcpy speed.
    """

    __array_interface__: ClassVar[dict[str, object]] = {
        "data": (_FIRST, True),
        "shape": ((1 << 45) - 64,),
        "strides": (8,),
        "typestr": f"|V{TENSOR.itemsize}",
        "version": 3,
    }


_ALL_TENSORS: NDArray[Any] = np.asarray(_AllTensors())


def gather(addresses: NDArray[np.uint64]) -> NDArray[Any]:
    """Copy the `ggml_tensor` structs at `addresses` (u64[n], multiples of 8) into one array of dtype `TENSOR`."""
    if len(addresses) and int(addresses.min()) < 4096:
        raise ValueError("a NULL pointer among the tensors to gather")
    found: NDArray[Any] = _ALL_TENSORS[(addresses.view(np.int64) >> 3) - 1].view(TENSOR)
    return found


def view(address: int, size: int, *, readonly: bool = False) -> memoryview:
    """`size` bytes at `address` as a memoryview of format B; it does not keep the memory alive."""
    if size == 0:
        return memoryview(b"") if readonly else memoryview(bytearray())
    result: memoryview = _memory_view(address, size, _READ if readonly else _WRITE)
    return result


def raw(address: int, size: int) -> bytes:
    """A copy of `size` bytes at `address`; quicker than copying a view of them."""
    return ctypes.string_at(address, size)


def array(address: int, count: int, dtype: Any) -> NDArray[Any]:
    """`count` items of `dtype` at `address` as a numpy view; it does not keep the memory alive."""
    kind = np.dtype(dtype)
    return np.frombuffer(view(address, count * kind.itemsize), kind)


def read_u64(address: int) -> int:
    """The 8 bytes at `address` as an unsigned int (a pointer or a size_t)."""
    return ctypes.c_uint64.from_address(address).value


def read_i32(address: int) -> int:
    """The 4 bytes at `address` as a signed int."""
    return ctypes.c_int32.from_address(address).value


def write_u64(address: int, value: int) -> None:
    """Store 8 bytes at `address`."""
    ctypes.c_uint64.from_address(address).value = value


def write_i32(address: int, value: int) -> None:
    """Store 4 bytes at `address`."""
    ctypes.c_int32.from_address(address).value = value


def read_text(address: int, limit: int = 4096) -> str:
    """The NUL-terminated text at `address`, at most `limit` bytes; "" for NULL."""
    if not address:
        return ""
    raw = ctypes.c_char_p(address).value or b""
    return raw[:limit].decode("utf-8", "replace")


def address_of(buffer: bytes | bytearray | memoryview | NDArray[Any] | ctypes.Structure | ctypes.Array[Any]) -> int:
    """Where the bytes of a contiguous buffer lie; the caller keeps it alive. 0 for an empty one."""
    flat = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(memoryview(buffer), np.uint8)
    return int(flat.__array_interface__["data"][0]) if flat.nbytes else 0


def copy(destination: int, source: int, size: int) -> None:
    """Memmove: the two ranges may overlap."""
    ctypes.memmove(destination, source, size)


def fill(destination: int, value: int, size: int) -> None:
    """Set `size` bytes at `destination` to `value` (0 to 255)."""
    ctypes.memset(destination, value, size)
