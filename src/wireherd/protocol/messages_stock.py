"""The stock messages that are plain records (upstream: `ggml/src/ggml-rpc/ggml-rpc.cpp`, the `rpc_msg_*` structs).

`remote_ptr` is a handle the server gave out; `tensor` fields hold the raw record of the dialect (see `tensor.py`).
"""

from __future__ import annotations

from wireherd.protocol.fields import SOURCES, TENSOR, U8, U32, U64, Message, fixed_bytes, message, wire
from wireherd.protocol.version import Version

#: bytes of transport capabilities in HELLO; all zero means plain TCP
CONN_CAPS_SIZE = 24
NO_CONN_CAPS = bytes(CONN_CAPS_SIZE)


@message
class EmptyResponse(Message):
    """An answer without content: a length of zero."""


@message
class AllocBufferRequest(Message):
    """Make a buffer on a device."""

    device: int = wire(U32, "index of the device on that server")
    size: int = wire(U64, "bytes")


@message
class AllocBufferResponse(Message):
    """The new buffer; a handle of zero says there was no room."""

    remote_ptr: int = wire(U64, "handle, 0 = failed")
    remote_size: int = wire(U64, "bytes really reserved")


@message
class GetAlignmentRequest(Message):
    """Ask how a device aligns tensors."""

    device: int = wire(U32, "index of the device")


@message
class GetAlignmentResponse(Message):
    """The alignment of a device's buffers."""

    alignment: int = wire(U64, "bytes")


@message
class GetMaxSizeRequest(Message):
    """Ask for the largest buffer a device can make."""

    device: int = wire(U32, "index of the device")


@message
class GetMaxSizeResponse(Message):
    """The largest buffer of a device."""

    max_size: int = wire(U64, "bytes")


@message
class BufferGetBaseRequest(Message):
    """Ask where a buffer begins."""

    remote_ptr: int = wire(U64, "handle")


@message
class BufferGetBaseResponse(Message):
    """The address at which a buffer begins, in the server's address space."""

    base_ptr: int = wire(U64, "address")


@message
class FreeBufferRequest(Message):
    """Give a buffer back; stored graphs that touch it are dropped."""

    remote_ptr: int = wire(U64, "handle")


@message
class BufferClearRequest(Message):
    """Fill a whole buffer with one byte."""

    remote_ptr: int = wire(U64, "handle")
    value: int = wire(U8, "the byte")


@message
class SetTensorRequest(Message):
    """Write to a tensor; the data follows as the rest of the payload."""

    tensor: bytes = wire(TENSOR, "where to")
    cache_flag: int = wire(U8, "1 = the server may keep the data in its file cache", since=Version(7, 0), absent=0)
    offset: int = wire(U64, "bytes from the start of the tensor")


@message
class SetTensorHashRequest(Message):
    """Ask whether the server has this data already, and let it use it."""

    tensor: bytes = wire(TENSOR, "where to")
    offset: int = wire(U64, "bytes from the start of the tensor")
    hash: int = wire(U64, "FNV-1a-64 of the data")


@message
class SetTensorHashResponse(Message):
    """Whether the data was there."""

    result: int = wire(U8, "1 = it was, nothing to send")


@message
class GetTensorRequest(Message):
    """Read from a tensor."""

    tensor: bytes = wire(TENSOR, "where from")
    offset: int = wire(U64, "bytes from the start of the tensor")
    size: int = wire(U64, "bytes")


@message
class CopyTensorRequest(Message):
    """Copy a tensor to another one on the same server."""

    src: bytes = wire(TENSOR, "where from")
    dst: bytes = wire(TENSOR, "where to")


@message
class CopyTensorResponse(Message):
    """Whether the server could copy."""

    result: int = wire(U8, "1 = done")


@message
class GetDeviceMemoryRequest(Message):
    """Ask for the memory of a device."""

    device: int = wire(U32, "index of the device")


@message
class GetDeviceMemoryResponse(Message):
    """Memory of a device."""

    free: int = wire(U64, "bytes")
    total: int = wire(U64, "bytes")


@message
class InitTensorRequest(Message):
    """Let the device prepare a tensor that was just placed (padding of quantised rows)."""

    tensor: bytes = wire(TENSOR, "which")


@message
class GetAllocSizeRequest(Message):
    """Ask how many bytes a device needs for a tensor."""

    device: int = wire(U32, "index of the device")
    tensor: bytes = wire(TENSOR, "which")
    srcs: bytes = wire(SOURCES, "its sources, all zero where there is none")


@message
class GetAllocSizeResponse(Message):
    """Bytes a device needs for a tensor."""

    alloc_size: int = wire(U64, "bytes")


@message
class HelloRequest(Message):
    """The first command of every connection."""

    conn_caps: bytes = wire(
        fixed_bytes(CONN_CAPS_SIZE),
        "transport capabilities: qpn u32, psn u32, gid[16]; zero = TCP",
        since=Version(4, 0),
        absent=NO_CONN_CAPS,
        default=NO_CONN_CAPS,
    )


@message
class HelloResponse(Message):
    """The server's protocol version."""

    major: int = wire(U8, "major version")
    minor: int = wire(U8, "minor version")
    patch: int = wire(U8, "patch version")
    extension: int = wire(U8, "padding; bit 0 = HERD_HELLO is understood", since=Version(4, 0), absent=0, default=0)
    conn_caps: bytes = wire(
        fixed_bytes(CONN_CAPS_SIZE),
        "transport capabilities",
        since=Version(4, 0),
        absent=NO_CONN_CAPS,
        default=NO_CONN_CAPS,
    )

    @property
    def version(self) -> Version:
        """The three numbers as a version."""
        return Version(self.major, self.minor, self.patch)

    @property
    def herd(self) -> bool:
        """Whether the server understands HERD_HELLO."""
        return bool(self.extension & 1)


@message
class DeviceCountRequest(Message):
    """Ask how many devices the server has."""


@message
class DeviceCountResponse(Message):
    """Number of devices."""

    count: int = wire(U32, "devices, numbered from 0")


@message
class MemsetTensorRequest(Message):
    """Fill part of a tensor with one byte."""

    tensor: bytes = wire(TENSOR, "where to")
    offset: int = wire(U64, "bytes from the start of the tensor")
    size: int = wire(U64, "bytes")
    value: int = wire(U8, "the byte")


@message
class SetTensor2DRequest(Message):
    """Write rows to a tensor; the rows follow side by side as the rest of the payload."""

    tensor: bytes = wire(TENSOR, "where to")
    offset: int = wire(U64, "bytes from the start of the tensor to the first row")
    size: int = wire(U64, "bytes a row")
    n_copies: int = wire(U64, "rows")
    stride: int = wire(U64, "bytes from row to row in the tensor")


@message
class GetTensor2DRequest(Message):
    """Read rows from a tensor."""

    tensor: bytes = wire(TENSOR, "where from")
    offset: int = wire(U64, "bytes from the start of the tensor to the first row")
    size: int = wire(U64, "bytes a row")
    n_copies: int = wire(U64, "rows")
    stride: int = wire(U64, "bytes from row to row in the tensor")


@message
class CommInitRequest(Message):
    """Join a group of two servers that reduce among themselves."""

    device: int = wire(U32, "index of the device")
    rank: int = wire(U32, "0 listens, 1 connects")
    world: int = wire(U32, "number of ranks, always 2")
    port: int = wire(U32, "port of rank 0 for the group")
    host: bytes = wire(fixed_bytes(64), "name of rank 0, NUL-terminated")


@message
class CommInitResponse(Message):
    """Whether the group stands."""

    ok: int = wire(U8, "1 = yes")


@message
class CommAllreduceRequest(Message):
    """Add a tensor over the ranks, in place."""

    device: int = wire(U32, "index of the device")
    tensor: bytes = wire(TENSOR, "contiguous F32")


@message
class CommFreeRequest(Message):
    """Leave the group."""

    device: int = wire(U32, "index of the device")
