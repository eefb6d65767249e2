"""Shape rules of the ops that work element by element or row by row. `shapes.py` says what a rule is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.worker.facts import repeats

if TYPE_CHECKING:
    from wireherd.worker.facts import Group

#: unary ops without a BF16 kernel, and the one whose kernel wants evenly spaced rows
_NO_BF16: Final = frozenset({"GELU", "GELU_ERF", "GELU_QUICK", "SILU"})
#: GLU ops with kernels for F16; the others have F32 alone
_HALF_GLU: Final = frozenset({"REGLU", "GEGLU", "SWIGLU", "GEGLU_ERF", "GEGLU_QUICK"})
#: longest dimension of an upscaled tensor: beyond it, rounding in the kernel's float32 could leave the source
_MAX_SCALED: Final = 1 << 20
#: `mode` of UPSCALE: nearest, bilinear, bicubic, and the flags for aligned corners and antialiasing
_SCALE_MODES: Final = (0, 1, 2, 256, 257, 258, 513, 769)
#: kinds of TRI and of POOL: upper and lower, with and without diagonal; maximum and average
_TRI_KINDS: Final = 4
_POOL_KINDS: Final = 2


def elementwise(group: Group) -> None:
    """SQR, SQRT, LOG, SIN, COS."""
    dst, src, types = group.dst, group.src(0), group.types
    floats = src.is_type(types.f32, types.f16, types.bf16)
    group.require(floats & (dst.type == src.type), "only floats, into the same type")
    group.require(dst.same_shape(src), "shapes differ")
    group.require(src.dense & dst.dense, "rows have holes")
    group.fresh()


def unary(group: Group, names: tuple[str, ...]) -> None:
    """UNARY: which one stands in parameter 0; `names` are the library's."""
    elementwise(group)
    kind = group.param(0)
    group.require((kind >= 0) & (kind < len(names)), "unknown unary operation")
    no_bf16 = np.isin(kind, [number for number, name in enumerate(names) if name in _NO_BF16])
    group.require_if(no_bf16, group.src(0).type != group.types.bf16, "no kernel for BF16")
    even = np.isin(kind, [number for number, name in enumerate(names) if name == "XIELU"])
    group.require_if(even, group.src(0).even & group.dst.even, "rows are not evenly spaced")


def glu(group: Group, names: tuple[str, ...]) -> None:
    """GLU: gate and value in two sources, or in the two halves of one."""
    dst, src, other, types = group.dst, group.src(0), group.src(1), group.types
    kind = group.param(0)
    group.require((kind >= 0) & (kind < len(names)), "unknown GLU operation")
    half = np.isin(kind, [number for number, name in enumerate(names) if name in _HALF_GLU])
    typed = src.is_type(types.f32) | (half & src.is_type(types.f16))
    group.require(typed & (dst.type == src.type), "no kernel for this type")
    group.require(src.even & dst.even & src.dense & dst.dense, "rows are not evenly spaced")
    width = np.where(other.present, src.dim(0), src.dim(0) // 2)
    group.require(dst.has_shape(width, src.dim(1), src.dim(2), src.dim(3)), "wrong shape of the result")
    fits = other.same_shape(src) & (other.type == src.type) & other.even & other.dense
    group.require_if(other.present, fits, "source 1 does not fit")


def clamp(group: Group) -> None:
    """CLAMP: evenly spaced rows, F32 or F16."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32, types.f16) & (dst.type == src.type), "only F32 and F16")
    group.require(dst.same_shape(src), "shapes differ")
    group.require(src.even & dst.even & src.dense & dst.dense, "rows are not evenly spaced")


def leaky_relu(group: Group) -> None:
    """LEAKY_RELU: as CLAMP."""
    clamp(group)


def argsort(group: Group) -> None:
    """ARGSORT: the order of each row, ascending or descending."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.i32), "only F32 into I32")
    group.require(dst.same_shape(src), "shapes differ")
    group.require(src.even & src.dense & dst.exact, "rows are not evenly spaced")
    group.require((group.param(0) >= 0) & (group.param(0) <= 1), "unknown order")


def top_k(group: Group) -> None:
    """TOP_K: where the k largest of each row are; k is the length of the result's rows."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.i32), "only F32 into I32")
    group.require(dst.dim(0) <= src.dim(0), "k is larger than a row")
    group.require(dst.has_shape(dst.dim(0), src.dim(1), src.dim(2), src.dim(3)), "wrong shape of the result")
    group.require(src.even & src.dense & dst.exact, "rows are not evenly spaced")


def argmax(group: Group) -> None:
    """ARGMAX: of each row of an F32 matrix."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.i32) & src.is_matrix(), "only an F32 matrix into I32")
    group.require(dst.has_shape(src.dim(1)) & src.dense & dst.exact, "wrong shape of the result")


def sum_rows(group: Group) -> None:
    """SUM_ROWS, MEAN: one number for each row."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(dst.has_shape(1, src.dim(1), src.dim(2), src.dim(3)), "wrong shape of the result")
    group.require(src.dense & dst.exact, "rows have holes")


def total(group: Group) -> None:
    """SUM: one number."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(dst.has_shape(1) & src.dense & dst.exact, "wrong shape of the result")


def cumsum(group: Group) -> None:
    """CUMSUM: along each row."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(dst.same_shape(src) & src.dense & dst.exact, "rows have holes")


def repeat(group: Group) -> None:
    """REPEAT: source 0 tiles the result."""
    dst, src, types = group.dst, group.src(0), group.types
    typed = src.is_type(types.f32, types.i32, types.f16, types.bf16, types.i16)
    group.require(typed & (dst.type == src.type), "no kernel for this type")
    group.require(repeats(src, dst) & ~src.empty, "source 0 does not tile the result")
    group.require(src.dense & dst.exact, "rows have holes")


def concat(group: Group) -> None:
    """CONCAT: along the dimension in parameter 0."""
    dst, left, right = group.dst, group.src(0), group.src(1)
    group.require((left.type == right.type) & (dst.type == left.type), "types differ")
    axis = group.param(0)
    group.require((axis >= 0) & (axis <= 3), "no such dimension")
    along = np.arange(4)[None, :] == axis[:, None]
    group.require(((left.ne == right.ne) | along).all(axis=1), "shapes differ")
    group.require((dst.ne == np.where(along, left.ne + right.ne, left.ne)).all(axis=1), "wrong shape of the result")
    group.require(dst.exact, "the result has holes")
    group.require((left.block == 1) | (left.dense & right.dense), "rows have holes")


def accumulate(group: Group) -> None:
    """ACC, SET: add or write source 1 into a copy of source 0, at strides and an offset given as parameters."""
    dst, src, part, types = group.dst, group.src(0), group.src(1), group.types
    typed = src.is_type(types.f32) if group.op == "ACC" else src.is_type(types.f32, types.i32)
    group.require(typed & (dst.type == src.type) & (part.type == src.type), "no kernel for these types")
    group.require(dst.same_shape(src) & src.contiguous & dst.contiguous & part.dense, "only dense tensors of one shape")
    strides = np.stack([np.full_like(dst.index, 4), group.param(0), group.param(1), group.param(2)], axis=1)
    offset = group.param(3)
    aligned = (strides % 4 == 0).all(axis=1) & (offset % 4 == 0)
    group.require(aligned & (strides >= 0).all(axis=1) & (offset >= 0), "bad strides")
    end = offset + 4 + ((part.ne - 1) * strides).sum(axis=1)
    group.require(part.empty | (end <= dst.nbytes), "source 1 does not fit into the result")


def diag(group: Group) -> None:
    """DIAG: vectors to diagonal matrices."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(src.dim(1) == 1, "not a vector")
    group.require(dst.has_shape(src.dim(0), src.dim(0), src.dim(2), src.dim(3)), "wrong shape of the result")
    group.require(src.dense & dst.exact, "rows have holes")


def diag_mask(group: Group) -> None:
    """DIAG_MASK_INF, DIAG_MASK_ZERO."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(dst.same_shape(src) & src.exact & dst.exact, "only dense tensors of one shape")
    group.require(group.param(0) >= 0, "a negative number of past tokens")


def tri(group: Group) -> None:
    """TRI: a triangle of each square matrix."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(dst.same_shape(src) & (src.dim(0) == src.dim(1)), "not square")
    group.require(src.contiguous & dst.exact, "only dense tensors")
    group.require((group.param(0) >= 0) & (group.param(0) < _TRI_KINDS), "unknown kind")


def fill(group: Group) -> None:
    """FILL: a constant in the shape of source 0."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32, types.f16) & (dst.type == src.type), "only F32 and F16")
    group.require(dst.same_shape(src) & src.contiguous & dst.contiguous & dst.dense, "only dense tensors of one shape")


def arange(group: Group) -> None:
    """ARANGE: as many steps as the parameters say."""
    dst, types = group.dst, group.types
    start, stop, step = group.real(0), group.real(1), group.real(2)
    # in float32, as the kernel counts them
    with np.errstate(all="ignore"):
        steps = np.ceil(((stop - start) / step).astype(np.float32))
    group.require(np.isfinite(steps) & (steps == dst.elements.astype(np.float32)), "another number of steps")
    group.require((dst.elements < 1 << 24) & dst.is_type(types.f32) & dst.exact & dst.is_vector(), "no F32 vector")


def timestep_embedding(group: Group) -> None:
    """TIMESTEP_EMBEDDING: a row for each time step."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require((group.param(0) > 0) & (group.param(1) > 0), "bad parameters")
    group.require(dst.has_shape(group.param(0), src.dim(0)) & src.dense & dst.exact, "wrong shape of the result")


def roll(group: Group) -> None:
    """ROLL: shifts along each dimension, by less than its length."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(dst.same_shape(src) & src.dense & dst.exact, "only dense rows of one shape")
    shifts = np.stack([group.param(number) for number in range(4)], axis=1)
    group.require(np.asarray((np.abs(shifts) < src.ne).all(axis=1)), "shifted by more than the length")


def pad(group: Group) -> None:
    """PAD: zeros, or the other side, around source 0."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    before = np.stack([group.param(number) for number in (0, 2, 4, 6)], axis=1)
    after = np.stack([group.param(number) for number in (1, 3, 5, 7)], axis=1)
    group.require(np.asarray(((before >= 0) & (after >= 0)).all(axis=1)), "negative padding")
    group.require((dst.ne == src.ne + before + after).all(axis=1) & dst.exact, "wrong shape of the result")
    circular = group.param(8)
    group.require((circular == 0) | ((circular == 1) & ~src.empty), "unknown kind")


def pad_reflect(group: Group) -> None:
    """PAD_REFLECT_1D: mirrors both ends of each row."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    before, after = group.param(0), group.param(1)
    group.require((before >= 0) & (after >= 0) & (before < src.dim(0)) & (after < src.dim(0)), "bad padding")
    length = src.dim(0) + before + after
    group.require(dst.has_shape(length, src.dim(1), src.dim(2), src.dim(3)), "wrong shape of the result")
    group.require(src.contiguous & src.dense & dst.exact, "only dense tensors")


def upscale(group: Group) -> None:
    """UPSCALE: interpolation to the shape of the result."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32) & dst.is_type(types.f32), "only F32")
    group.require(np.isin(group.param(0), _SCALE_MODES), "unknown mode")
    small = (src.ne <= _MAX_SCALED).all(axis=1) & (dst.ne <= _MAX_SCALED).all(axis=1)
    group.require(small & ~src.empty & dst.exact, "bad shape")


def pool(group: Group) -> None:
    """POOL_1D, POOL_2D: maximum or average of windows."""
    dst, src, types = group.dst, group.src(0), group.types
    group.require(src.is_type(types.f32, types.f16) & dst.is_type(types.f32), "only floats into F32")
    group.require((group.param(0) >= 0) & (group.param(0) < _POOL_KINDS), "unknown kind")
    axes = 1 if group.op == "POOL_1D" else 2
    ok = src.exact & dst.exact
    for axis in range(axes):
        window, step, border = (group.param(1 + axes * part + axis) for part in range(3))
        bounded = (window > 0) & (step > 0) & (border >= 0) & (window < 1 << 16) & (step < 1 << 16) & (border < 1 << 16)
        group.require(bounded, "bad parameters")
        ok &= dst.dim(axis) == (src.dim(axis) + 2 * border - window) // np.maximum(step, 1) + 1
    for axis in range(axes, 4):
        ok &= dst.dim(axis) == src.dim(axis)
    group.require(ok, "wrong shape of the result")
