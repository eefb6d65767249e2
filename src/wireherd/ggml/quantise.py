"""Numbers into ggml's types, by the library's own code: what `llama_model_quantize` does to each tensor.

That function itself is not called: builds that only run models (xllamacpp's) leave it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wireherd.errors import GgmlFailed
from wireherd.ggml import memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wireherd.ggml.library import Library


def quantise(lib: Library, kind: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows of floats as rows of a type (`ggml_quantize_chunk`), without an importance matrix.

    Args:
        lib: The library.
        kind: The type's name as the library spells it ("q4_K"); upper and lower case are the same.
        values: f32[..., n]; n must fill whole blocks of the type.

    Returns:
        u8[..., bytes of a row].

    Raises:
        GgmlFailed: there is no such type, it needs an importance matrix, or rows do not fill its blocks.
    """
    names = [name.lower() for name in lib.numbering().types]
    if kind.lower() not in names:
        raise GgmlFailed(f"{lib.build} has no type {kind}")
    number = names.index(kind.lower())
    blocks, sizes = lib.type_sizes()
    block, size = int(blocks[number]), int(sizes[number])
    source = np.ascontiguousarray(values, np.float32)
    length = source.shape[-1]
    if not block or not length or length % block:
        raise GgmlFailed(f"rows of {length} numbers do not fill blocks of {block}, as {kind} has them")
    if lib.c.ggml_quantize_requires_imatrix(number):
        raise GgmlFailed(f"{kind} needs an importance matrix")
    out = np.empty((*source.shape[:-1], length // block * size), np.uint8)
    written = lib.c.ggml_quantize_chunk(
        number, memory.address_of(source), memory.address_of(out), 0, source.size // length, length, 0
    )
    if written != out.nbytes:
        raise GgmlFailed(f"ggml wrote {written} bytes of {kind} where {out.nbytes} were expected")
    return out
