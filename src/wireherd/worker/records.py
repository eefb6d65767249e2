"""One tensor record from the wire, checked by itself: type, sizes, strides, and how many bytes it spans.

Plain integers, so nothing overflows; `validate.py` does the same for all tensors of a graph at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wireherd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.protocol.tensor import TensorRecord
    from wireherd.worker.facts import Types

#: no address, stride or size of a tensor reaches this
ADDRESS_LIMIT: Final = 1 << 47
_WRAP: Final = 1 << 32


def repaired_strides(block: int, size: int, ne: Sequence[int], nb: Sequence[int]) -> tuple[int, int, int, int]:
    """The strides of a stock record, whose fields hold their low 32 bits only.

    A stride that equals the dense one in these bits is the dense one: nothing else can be told from such a record.
    """
    fixed = [nb[0]]
    dense = nb[0] * (ne[0] // block) if nb[0] == size else nb[0] * ne[0]
    for axis in range(1, 4):
        stride = dense if dense >= _WRAP and dense % _WRAP == nb[axis] else nb[axis]
        fixed.append(stride)
        dense = stride * ne[axis]
    return fixed[0], fixed[1], fixed[2], fixed[3]


def tensor_type(types: Types, numbers: Sequence[int] | None, record: TensorRecord) -> int:
    """The library's number of the record's type; `numbers` maps the peer's numbers, None says they are the same.

    Raises:
        BadRequest: there is no such type here.
    """
    number = record.type
    if numbers is not None:
        number = numbers[number] if 0 <= number < len(numbers) else -1
    if not 0 <= number < len(types.known) or not types.known[number]:
        raise BadRequest(f"tensor {record.label!r} has type {record.type}, which this worker's ggml does not have")
    return number


def tensor_span(
    types: Types, number: int, record: TensorRecord, *, narrow: bool
) -> tuple[int, tuple[int, int, int, int]]:
    """Bytes from a tensor's first byte to its last, as `ggml_nbytes` counts them, and its true strides.

    Args:
        types: the library's types.
        number: the library's number of the record's type.
        record: the record.
        narrow: whether its strides travelled in 32 bits.

    Raises:
        BadRequest: sizes or strides are negative, beyond all memory, or no whole blocks.
    """
    block, size = int(types.block[number]), int(types.size[number])
    ne, nb = record.ne, record.nb
    if min(ne) < 0 or max(ne) >= ADDRESS_LIMIT or ne[0] % block:
        raise BadRequest(f"tensor {record.label!r} has impossible sizes {ne}")
    if narrow:
        nb = repaired_strides(block, size, ne, nb)
    if max(nb) >= ADDRESS_LIMIT:
        raise BadRequest(f"tensor {record.label!r} is larger than any memory")
    if not min(ne):
        return 0, nb
    total = size + (ne[0] - 1) * nb[0] if block == 1 else ne[0] * nb[0] // block
    for axis in range(1, 4):
        total += (ne[axis] - 1) * nb[axis]
    if total >= ADDRESS_LIMIT:
        raise BadRequest(f"tensor {record.label!r} is larger than any memory")
    return total, nb
