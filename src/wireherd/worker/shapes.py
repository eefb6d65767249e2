"""Shape rules of the ops that every llama.cpp graph uses: what ggml's builders guarantee and its kernels rely on.

ggml's builders (`ggml.c`) assert shapes when a graph is made, its kernels (`ggml-cpu/ops.cpp`) mostly trust them: some
assert again, which ends the process, some read or write past the end without a word. A graph from the network never
went through a builder, so each rule here demands what the builder would have, plus what only the kernels assume
(dense rows, evenly spaced rows, a mask with a row for every query). Rules work on all nodes of an op at once.

The values of index tensors (GET_ROWS, SET_ROWS, ADD_ID, MUL_MAT_ID, SSM_SCAN) are no matter of shape: `indices.py`
looks at them before a graph runs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireherd.worker.facts import Group, Operand, divides, repeats

#: `mode` of ROPE: normal, neox, mrope, vision, imrope
_ROPE_MODES: Final = (0, 2, 8, 24, 40)
_ROPE_SECTIONED: Final = 8
_ROPE_VISION: Final = 24
#: `hint` of MUL_MAT: the first source is a Hadamard matrix and is not even read
_HINT_HADAMARD: Final = 1
#: how often source 1 of a product may show the same memory, and the bytes below which nobody cares
_MAX_OVERLAP: Final = 4
_SMALL: Final = 1 << 20
#: most (expert, slot, token) triples of one MUL_MAT_ID; ggml plans 8 bytes of work memory for each
_EXPERT_ROWS: Final = 1 << 28


def view(group: Group) -> None:
    """VIEW, RESHAPE, PERMUTE, TRANSPOSE: nothing runs; bounds alone matter, and they were checked."""
    del group


def copy(group: Group) -> None:
    """DUP, CONT: a copy of the same type into a dense tensor."""
    dst, src = group.dst, group.src(0)
    group.require(dst.type == src.type, "a copy cannot change the type here")
    group.require(dst.elements == src.elements, "source and result differ in size")
    _block_copy(group, src)
    group.fresh()


def cpy(group: Group) -> None:
    """CPY: a copy into the place of source 1, with conversion. Without source 1, as older clients send it, as CONT."""
    dst, src, target, types = group.dst, group.src(0), group.src(1), group.types
    # The dequantising kernel takes shape and strides of source 1 but writes through the result's address.
    group.require_if(target.present, dst.same_layout(target), "source 1 is not the place of the result")
    group.require(dst.elements == src.elements, "source and result differ in size")
    same = dst.type == src.type
    floats = (types.f32, types.f16, types.bf16)
    converts = src.is_type(*floats) & dst.is_type(*floats)
    converts |= (src.type == types.f32) & (dst.type == types.i32)
    converts |= (src.type == types.i32) & (dst.type == types.f32)
    packs = src.is_type(*floats) & types.quantised[dst.type] & types.writable[dst.type]
    unpacks = types.quantised[src.type] & (dst.type == types.f32)
    group.require(same | converts | packs | unpacks, "no conversion between these types")
    # Rows are quantised one by one, so a row of the source must fill whole blocks of the result.
    # They pass through a work buffer planned for rows of the result: longer ones would overrun it.
    rows = src.dense & dst.contiguous & (src.dim(0) % dst.block == 0) & (src.dim(0) <= dst.dim(0))
    group.require_if(packs, rows, "only dense rows are quantised")
    dense_rows = target.present & dst.dense & ((dst.dim(0) % np.maximum(src.block, 1) == 0) | dst.contiguous)
    group.require_if(unpacks, dense_rows & src.dense, "only dense rows are dequantised")
    _block_copy(group, src)


def _block_copy(group: Group, src: Operand) -> None:
    """Blocks cannot be taken apart: copies of quantised data go by whole dense rows."""
    same = (src.type == group.dst.type) & (src.block > 1)
    rows = src.dense & group.dst.dense & (src.same_shape(group.dst) | (src.contiguous & group.dst.contiguous))
    group.require_if(same, rows, "quantised rows with holes cannot be copied")


def binary(group: Group) -> None:
    """ADD, SUB, MUL, DIV: source 1 is repeated over source 0."""
    dst, left, right, types = group.dst, group.src(0), group.src(1), group.types
    f32, f16, bf16 = types.f32, types.f16, types.bf16
    combos = (
        (f32, f32, f32),
        (f16, f16, f16),
        (bf16, bf16, bf16),
        (bf16, f32, bf16),
        (bf16, f32, f32),
        (f16, f32, f16),
    )
    ok = np.zeros(len(dst.index), np.bool_)
    for one, two, out in (*combos, (f16, f32, f32)):
        ok |= (left.type == one) & (right.type == two) & (dst.type == out)
    group.require(ok, "no kernel for these types")
    group.require(dst.same_shape(left), "the result has another shape than source 0")
    group.require(repeats(right, left), "source 1 cannot be repeated over source 0")
    group.require(left.dense & dst.dense, "rows have holes")
    group.fresh()


def add_id(group: Group) -> None:
    """ADD_ID: adds the row of source 1 that source 2 names."""
    dst, left, rows, ids, types = group.dst, group.src(0), group.src(1), group.src(2), group.types
    group.require(left.is_type(types.f32) & rows.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(ids.is_type(types.i32), "the indices are not I32")
    group.require(dst.same_shape(left), "the result has another shape than source 0")
    group.require(left.dim(0) == rows.dim(0), "rows differ in length")
    group.require((left.dim(1) == ids.dim(0)) & (left.dim(2) == ids.dim(1)), "no index for each row")
    group.require(left.dense & rows.dense & dst.dense, "rows have holes")
    group.fresh()


def scale(group: Group) -> None:
    """SCALE: dense F32, row by row."""
    dst, src = group.dst, group.src(0)
    group.require(src.is_type(group.types.f32) & dst.is_type(group.types.f32), "only F32")
    group.require(dst.same_shape(src), "shapes differ")
    # The kernel finds every row at a multiple of the second stride, which density alone leaves open for one row.
    group.require(src.contiguous & src.even & dst.contiguous & dst.even, "only dense tensors")


def norm(group: Group) -> None:
    """NORM, RMS_NORM, L2_NORM: along rows of F32; epsilon must not be negative or NaN."""
    dst, src = group.dst, group.src(0)
    group.require(src.is_type(group.types.f32) & dst.is_type(group.types.f32), "only F32")
    group.require(dst.same_shape(src), "shapes differ")
    group.require(src.dense & dst.dense, "rows have holes")
    group.require(group.real(0) >= 0, "epsilon is negative")
    group.fresh()


def group_norm(group: Group) -> None:
    """GROUP_NORM: the channels of dimension 2 in groups."""
    dst, src = group.dst, group.src(0)
    group.require(src.is_type(group.types.f32) & dst.is_type(group.types.f32), "only F32")
    group.require(dst.same_shape(src), "shapes differ")
    group.require(src.dense & dst.dense, "rows have holes")
    group.require((group.param(0) > 0) & (group.param(0) <= np.maximum(src.dim(2), 1)), "bad number of groups")
    group.fresh()


def _product(group: Group, weights: Operand, data: Operand) -> None:
    """What MUL_MAT and MUL_MAT_ID share."""
    dst, types = group.dst, group.types
    group.require(types.matrix[weights.type], "source 0 is of no type that can be multiplied")
    group.require(types.matrix[data.type], "source 1 is of no type that can be multiplied")
    group.require(dst.is_type(types.f32), "the result is not F32")
    group.require(weights.dim(0) == data.dim(0), "rows differ in length")
    # Both sources have dense rows; which of two sources is transposed is ggml's test on the first two strides.
    group.require(weights.dense & data.dense & (weights.stride(0) <= weights.stride(1)), "a source is transposed")
    group.require(dst.exact, "the result has holes")
    # The kernel converts all rows of source 1 at once, into work memory that no limit on buffers counts: rows that
    # overlap would make it many times what the client was granted.
    shown = data.elements // np.maximum(data.block, 1) * data.size
    group.require(shown <= data.nbytes * _MAX_OVERLAP + _SMALL, "the rows of source 1 overlap")


def mul_mat(group: Group) -> None:
    """MUL_MAT: rows of source 0 times rows of source 1; dimensions 2 and 3 of source 0 are repeated."""
    dst, weights, data, types = group.dst, group.src(0), group.src(1), group.types
    _product(group, weights, data)
    group.require(dst.has_shape(weights.dim(1), data.dim(1), data.dim(2), data.dim(3)), "wrong shape of the result")
    repeated = divides(weights.dim(2), data.dim(2)) & divides(weights.dim(3), data.dim(3))
    group.require(repeated, "source 0 cannot be repeated over source 1")
    # A size of 0 here would divide by zero: a non-empty result needs non-empty factors.
    group.require((weights.dim(2) > 0) & (weights.dim(3) > 0), "a source is empty")
    hint = group.param(1)
    hadamard = hint == _HINT_HADAMARD
    group.require((hint == 0) | hadamard, "unknown hint")
    length = data.dim(0)
    power = (length & (length - 1)) == 0
    fits = power & (weights.dim(1) == length) & data.is_type(types.f32)
    group.require_if(hadamard, fits, "no Hadamard product")


def mul_mat_id(group: Group) -> None:
    """MUL_MAT_ID: as MUL_MAT, with the matrix chosen by source 2 for each slot of each token."""
    dst, weights, data, ids, types = group.dst, group.src(0), group.src(1), group.src(2), group.types
    _product(group, weights, data)
    group.require(ids.is_type(types.i32) & ids.is_matrix(), "the indices are no I32 matrix")
    group.require((weights.dim(3) == 1) & (data.dim(3) == 1), "more than three dimensions")
    group.require(ids.dim(1) == data.dim(2), "no indices for each token")
    group.require(divides(data.dim(1), ids.dim(0)) & (data.dim(1) > 0), "source 1 cannot be repeated over the slots")
    group.require(dst.has_shape(weights.dim(1), ids.dim(0), data.dim(2)), "wrong shape of the result")
    work = weights.dim(2).astype(np.float64) * ids.dim(0) * ids.dim(1)
    group.require(work <= _EXPERT_ROWS, "too many experts")


def out_prod(group: Group) -> None:
    """OUT_PROD: F32 columns times rows."""
    dst, left, right, types = group.dst, group.src(0), group.src(1), group.types
    group.require(left.is_type(types.f32) & right.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(left.dim(1) == right.dim(1), "sources differ in length")
    group.require(divides(left.dim(2), right.dim(2)) & divides(left.dim(3), right.dim(3)), "cannot be repeated")
    group.require((left.dim(2) > 0) & (left.dim(3) > 0), "a source is empty")
    group.require(dst.has_shape(left.dim(0), right.dim(0), right.dim(2), right.dim(3)), "wrong shape of the result")
    group.require(left.dense & dst.exact, "rows have holes")


def get_rows(group: Group) -> None:
    """GET_ROWS: rows of source 0 by the indices in source 1."""
    dst, table, ids, types = group.dst, group.src(0), group.src(1), group.types
    group.require(types.matrix[table.type] | table.is_type(types.i32), "no kernel for this type")
    group.require(ids.is_type(types.i32) & (ids.dim(3) == 1), "the indices are not I32")
    group.require((table.dim(2) == ids.dim(1)) & (table.dim(3) == ids.dim(2)), "no table for each row of indices")
    group.require(dst.has_shape(table.dim(0), ids.dim(0), ids.dim(1), ids.dim(2)), "wrong shape of the result")
    wanted = np.where(table.type == types.i32, types.i32, types.f32)
    group.require(dst.type == wanted, "wrong type of the result")
    group.require(table.dense & dst.exact, "rows have holes")


def set_rows(group: Group) -> None:
    """SET_ROWS: writes rows of source 0 where the indices in source 1 say; source 2 is the tensor written to."""
    dst, rows, ids, target, types = group.dst, group.src(0), group.src(1), group.src(2), group.types
    group.require(rows.is_type(types.f32, types.f16), "only F32 and F16 rows can be written")
    group.require(types.writable[dst.type], "no kernel writes this type")
    group.require(ids.is_type(types.i64, types.i32) & (ids.dim(3) == 1), "the indices are no integers")
    group.require_if(target.present, dst.same_layout(target), "source 2 is not the place of the result")
    group.require(
        (dst.dim(0) == rows.dim(0)) & (dst.dim(2) == rows.dim(2)) & (dst.dim(3) == rows.dim(3)), "shapes differ"
    )
    group.require(rows.dim(1) == ids.dim(0), "no index for each row")
    group.require(divides(ids.dim(1), rows.dim(2)) & divides(ids.dim(2), rows.dim(3)), "indices cannot be repeated")
    group.require((ids.dim(1) > 0) & (ids.dim(2) > 0), "no indices")
    group.require(dst.row_dense & rows.row_dense, "rows have holes")


def soft_max(group: Group) -> None:
    """SOFT_MAX: along rows, with an optional mask (source 1) and sinks (source 2)."""
    dst, src, mask, sinks, types = group.dst, group.src(0), group.src(1), group.src(2), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(dst.same_shape(src) & src.contiguous & dst.contiguous, "only dense tensors of one shape")
    fits = mask.is_type(types.f16, types.f32) & mask.contiguous & (mask.dim(0) == src.dim(0))
    fits &= (mask.dim(1) >= src.dim(1)) & (mask.dim(2) > 0) & (mask.dim(3) > 0)
    fits &= divides(mask.dim(2), src.dim(2)) & divides(mask.dim(3), src.dim(3))
    group.require_if(mask.present, fits, "the mask does not fit")
    # the builder's rule, false for NaN as in ggml
    group.require_if(group.real(1) > 0, mask.present, "ALiBi without a mask")
    fits = sinks.is_type(types.f32) & (sinks.dim(0) == src.dim(2)) & sinks.row_dense
    group.require_if(sinks.present, fits, "the sinks do not fit")


def rope(group: Group) -> None:
    """ROPE: positions in source 1, frequency factors in source 2."""
    dst, src, positions, factors, types = group.dst, group.src(0), group.src(1), group.src(2), group.types
    group.require(src.is_type(types.f32, types.f16) & (dst.type == src.type), "only F32 and F16")
    group.require(dst.same_shape(src) & src.dense & dst.dense, "only dense rows of one shape")
    group.fresh()
    length, dims, mode, start = src.dim(0), group.param(1), group.param(2), group.param(15)
    group.require(np.isin(mode, _ROPE_MODES), "unknown mode")
    # The kernel writes pairs over the whole row, also where it only copies.
    group.require((length % 2 == 0) & (dims >= 2) & (dims % 2 == 0), "an odd number of rotated dimensions")
    group.require((start >= 0) & (start % 2 == 0) & (start + dims <= length), "rotates more than a row")
    vision = mode == _ROPE_VISION
    group.require_if(vision, (dims * 2 == length) & (start == 0), "vision mode rotates half a row")
    sectioned = (mode & _ROPE_SECTIONED) != 0
    count = np.where(sectioned, 4, 1) * src.dim(2)
    dense = positions.is_type(types.i32) & positions.is_vector() & positions.dense
    group.require(dense & (positions.dim(0) == count), "no position for each token")
    sections = np.stack([group.param(number) for number in range(11, 15)], axis=1)
    total = sections.sum(axis=1)
    fits = (sections >= 0).all(axis=1) & (sections[:, :3].sum(axis=1) > 0) & (total <= length)
    group.require_if(sectioned, fits, "the sections do not fit")
    # The kernel reads a factor for every pair of the row, rotated or not: past the end of a short list of factors,
    # but that must still lie in its buffer.
    fits = factors.is_type(types.f32) & factors.row_dense & (factors.dim(0) * 2 >= dims)
    group.require_if(factors.present, fits & (factors.room >= length * 2), "the frequency factors do not fit")


def flash_attn(group: Group) -> None:
    """FLASH_ATTN_EXT: queries, keys, values, optional mask (source 3) and sinks (source 4)."""
    dst, q, k, v, types = group.dst, group.src(0), group.src(1), group.src(2), group.types
    mask, sinks = group.src(3), group.src(4)
    group.require(q.is_type(types.f32) & dst.is_type(types.f32), "queries and result are not F32")
    group.require(types.writable[k.type] & types.matrix[v.type], "no kernel for these keys and values")
    group.require(q.dense & k.dense & v.dense & dst.exact, "rows have holes")
    group.require((q.dim(0) == k.dim(0)) & (k.dim(1) == v.dim(1)), "keys, values and queries differ in length")
    group.require((k.dim(2) > 0) & (v.dim(2) > 0) & (k.dim(3) > 0) & (v.dim(3) > 0), "no keys or values")
    heads = divides(k.dim(2), q.dim(2)) & divides(v.dim(2), q.dim(2))
    group.require(heads, "the heads of keys or values cannot be repeated over those of the queries")
    group.require((q.dim(3) == k.dim(3)) & (q.dim(3) == v.dim(3)), "the number of sequences differs")
    group.require(dst.has_shape(v.dim(0), q.dim(2), q.dim(1), q.dim(3)), "wrong shape of the result")
    # The builder leaves the mask's first two dimensions unchecked, the kernel reads one row for each query.
    fits = mask.is_type(types.f16) & mask.contiguous & (mask.dim(0) >= k.dim(1)) & (mask.dim(1) >= q.dim(1))
    fits &= (mask.dim(2) > 0) & (mask.dim(3) > 0)
    fits &= divides(mask.dim(2), q.dim(2)) & divides(mask.dim(3), q.dim(3))
    group.require_if(mask.present, fits, "the mask does not fit")
    group.require_if(group.real(1) > 0, mask.present, "ALiBi without a mask")
    fits = sinks.is_type(types.f32) & (sinks.dim(0) == q.dim(2)) & sinks.row_dense
    group.require_if(sinks.present, fits, "the sinks do not fit")
    group.require((group.param(3) == 0) | (group.param(3) == 10), "unknown precision")
