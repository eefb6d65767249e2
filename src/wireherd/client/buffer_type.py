"""The buffer type vtable: the kind of memory one device of a worker has (`ggml_backend_buffer_type_i`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wireherd.bridge.gather import raw_tensor, shape_key
from wireherd.client.buffer import RemoteBuffers, buffers_for, is_padded
from wireherd.ggml import memory, vtable
from wireherd.ggml.structs import TensorOffset
from wireherd.protocol.messages_stock import GetAllocSizeRequest, GetAllocSizeResponse

if TYPE_CHECKING:
    from wireherd.client.endpoint import DeviceFacts, Endpoint
    from wireherd.ggml.library import Library

#: operations for which some backends want room beside the result (ggml-rpc.cpp asks for the same two)
_WITH_SCRATCH: Final = ("FLASH_ATTN_EXT", "MUL_MAT_ID")
#: answers remembered before the memory is emptied
MEMO_LIMIT: Final = 16384


class RemoteBufferType:
    """Owner of the `ggml_backend_buffer_type` struct; its methods are the slots."""

    def __init__(self, lib: Library, endpoint: Endpoint, facts: DeviceFacts) -> None:
        self._lib = lib
        self._endpoint = endpoint
        self._facts = facts
        self.buffers: RemoteBuffers = buffers_for(lib, endpoint, facts, endpoint.graphs[facts.index])
        #: what `-ot` matches, as the stock client writes it: the device's number on its server, and the address
        self.name = f"RPC{facts.index}[{endpoint.name}]"
        self._c_name = self.name.encode() + b"\0"
        self._struct = lib.abi.BufferType()
        self._struct.iface = vtable.bind(lib.abi.BufferTypeInterface, self, on_error=endpoint.on_error)
        #: address of the struct
        self.pointer = memory.address_of(self._struct)

    def belongs_to(self, device: int) -> None:
        """Set the device, by the address of its struct."""
        self._struct.device = device

    # slots

    def get_name(self, _type: int) -> int:
        """Address of the name."""
        return memory.address_of(self._c_name)

    def alloc_buffer(self, _type: int, size: int) -> int:
        """Make a buffer on the worker; NULL if it has no room, and the endpoint knows why."""
        return self.buffers.alloc(self.pointer, size)

    def get_alignment(self, _type: int) -> int:
        """Alignment of tensors, bytes."""
        return self._facts.alignment

    def get_max_size(self, _type: int) -> int:
        """Largest buffer, bytes."""
        return self._facts.max_size

    def is_host(self, _type: int) -> bool:
        """No: nobody here can look at a worker's memory."""
        return False


class PaddedBufferType(RemoteBufferType):
    """For devices whose tensors may take more than their own bytes."""

    def __init__(self, lib: Library, endpoint: Endpoint, facts: DeviceFacts) -> None:
        ops = lib.numbering().ops
        self._with_scratch = frozenset(ops.index(name) for name in _WITH_SCRATCH if name in ops)
        self._memo: dict[bytes, int] = {}
        super().__init__(lib, endpoint, facts)

    def get_alloc_size(self, _type: int, tensor: int) -> int:
        """Bytes the tensor takes; the worker is asked in the cases the stock client asks, once for each shape."""
        plain: int = self._lib.c.ggml_nbytes(tensor)
        endpoint = self._endpoint
        scratch = memory.read_i32(tensor + TensorOffset.OP) in self._with_scratch
        if not (scratch or is_padded(self._lib, tensor)) or not endpoint.alive:
            return plain
        key = shape_key(raw_tensor(tensor))
        known = self._memo.get(key)
        if known is None:
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            record, sources = endpoint.records.with_sources(tensor)
            message = GetAllocSizeRequest(self._facts.index, record, sources)
            known = self._memo[key] = endpoint.call(message, GetAllocSizeResponse).alloc_size
        return max(plain, known)


def buffer_type_for(lib: Library, endpoint: Endpoint, facts: DeviceFacts) -> RemoteBufferType:
    """Make the buffer type that a device calls for."""
    kind = RemoteBufferType if facts.plain_alloc_size else PaddedBufferType
    return kind(lib, endpoint, facts)
