"""What slots look up in a `ggml_tensor` of this process, by its address."""

from __future__ import annotations

from wireherd.ggml import memory
from wireherd.ggml.structs import TensorOffset


def buffer_of(tensor: int) -> int:
    """Address of the buffer that a tensor lies in; of its origin's, for a view that was never placed. 0: in none."""
    buffer = memory.read_u64(tensor + TensorOffset.BUFFER)
    if not buffer:
        origin = memory.read_u64(tensor + TensorOffset.VIEW_SRC)
        buffer = memory.read_u64(origin + TensorOffset.BUFFER) if origin else 0
    return buffer


def alike(source: int, destination: int) -> bool:
    """Whether two tensors have one type and the same sizes and strides, so that a copy is one of bytes."""
    if memory.read_i32(source + TensorOffset.TYPE) != memory.read_i32(destination + TensorOffset.TYPE):
        return False
    size = TensorOffset.OP - TensorOffset.NE
    return bool(
        memory.view(source + TensorOffset.NE, size, readonly=True)
        == memory.view(destination + TensorOffset.NE, size, readonly=True)
    )
