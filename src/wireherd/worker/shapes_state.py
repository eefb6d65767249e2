"""Shape rules of recurrent layers, sparse attention and convolutions. `shapes.py` says what a rule is.

The kernels here index their sources as flat arrays, from sizes they take from one of them. Every source must therefore
be dense and of exactly the size that the others imply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.worker.facts import divides

if TYPE_CHECKING:
    from wireherd.worker.facts import Group, Ints, Operand

#: largest patch of a direct convolution, bytes: ggml gives it 16 MiB of work memory and asserts that one fits
_MAX_PATCH: Final = 8 << 20
#: largest stride, padding or dilation of a convolution
_MAX_STEP: Final = 1 << 16
#: width of the DSV4 hyper-connections that ggml's kernel has compiled in
_DSV4_WIDTH: Final = 4


def _all_f32(group: Group, *operands: Operand) -> None:
    for operand in (group.dst, *operands):
        group.require(operand.is_type(group.types.f32), "only F32")


def ssm_conv(group: Group) -> None:
    """SSM_CONV: a sliding window over each row of source 0."""
    dst, rows, kernel = group.dst, group.src(0), group.src(1)
    _all_f32(group, rows, kernel)
    group.require((rows.dim(3) == 1) & kernel.is_matrix() & (rows.dim(1) == kernel.dim(1)), "sources do not fit")
    tokens = rows.dim(0) - kernel.dim(0) + 1
    group.require((tokens >= 0) & dst.has_shape(rows.dim(1), tokens, rows.dim(2)), "wrong shape of the result")
    dense = rows.dense & (rows.stride(1) == rows.dim(0) * 4) & kernel.exact & dst.exact
    group.require(dense, "rows have holes")


def ssm_scan(group: Group) -> None:
    """SSM_SCAN: sources state, x, dt, A, B, C and the ids of the states; parameter 0 is the number of snapshots."""
    s, x, dt, a, b, c, ids = (group.src(number) for number in range(7))
    dst, types = group.dst, group.types
    _all_f32(group, s, x, dt, a, b, c)
    group.require(ids.is_type(types.i32) & ids.is_vector() & ids.dense, "the indices are no I32 vector")
    group.require(s.exact & dt.contiguous & dt.dense & a.contiguous & a.dense & x.dense & b.dense & c.dense, "holes")
    rows = (x.stride(1) == x.dim(0) * 4) & (b.stride(1) == b.dim(0) * 4) & (c.stride(1) == c.dim(0) * 4)
    group.require(rows, "rows have holes")
    heads, tokens, sequences = x.dim(1), x.dim(2), x.dim(3)
    group.require(dt.has_shape(heads, tokens, sequences), "dt does not fit")
    group.require((s.dim(1) == x.dim(0)) & (s.dim(2) == heads), "the state does not fit")
    groups = b.dim(1)
    group.require(b.has_shape(s.dim(0), groups, tokens, sequences) & b.same_shape(c), "B and C do not fit")
    group.require((groups > 0) & divides(groups, heads), "bad number of groups")
    group.require(ids.dim(0) == sequences, "no state for each sequence")
    group.require(a.is_matrix() & (a.dim(1) == heads) & ((a.dim(0) == 1) | (a.dim(0) == s.dim(0))), "A does not fit")
    # Older ggml has no such parameter and leaves it 0.
    snapshots = np.maximum(group.param(0), 1)
    group.require((group.param(0) >= 0) & ((snapshots == 1) | (a.dim(0) == 1)), "bad number of snapshots")
    state = s.dim(0) * s.dim(1) * s.dim(2) * sequences
    group.require(snapshots.astype(np.float64) * state < 1 << 40, "too large")
    group.require(dst.has_shape(x.elements + snapshots * state) & dst.exact, "wrong shape of the result")


def _linear_attention(group: Group, like: Operand, tokens_like: list[Operand], state: Operand) -> None:
    """What the RWKV and gated linear attention kernels share: sources [size, heads, tokens] and one state."""
    dst = group.dst
    size, heads, tokens = like.dim(0), like.dim(1), like.dim(2)
    for source in (like, *tokens_like):
        group.require(source.has_shape(size, heads, tokens) & source.contiguous, "a source does not fit")
    sequences = state.dim(1)
    # the kernel takes the number of sequences from the second dimension and all else flat
    flat = state.contiguous & (state.elements == size * size * heads * sequences)
    group.require(flat, "the state does not fit")
    # Tokens are dealt out evenly: the kernel divides by tokens / sequences.
    group.require((sequences > 0) & (heads > 0) & (tokens > 0) & divides(sequences, tokens), "bad number of sequences")
    group.require(dst.has_shape(size * heads, tokens + size * sequences) & dst.exact, "wrong shape of the result")


def rwkv_wkv6(group: Group) -> None:
    """RWKV_WKV6: k, v, r, time_faaaa, time_decay, state."""
    k, v, r, first, decay, state = (group.src(number) for number in range(6))
    _all_f32(group, k, v, r, first, decay, state)
    group.require(first.contiguous & (first.elements == k.dim(0) * k.dim(1)), "time_faaaa does not fit")
    _linear_attention(group, k, [v, r, decay], state)


def gated_linear_attn(group: Group) -> None:
    """GATED_LINEAR_ATTN: k, v, q, g, state."""
    k, v, q, g, state = (group.src(number) for number in range(5))
    _all_f32(group, k, v, q, g, state)
    _linear_attention(group, k, [v, q, g], state)


def rwkv_wkv7(group: Group) -> None:
    """RWKV_WKV7: r, w, k, v, a, b, state."""
    r, w, k, v, a, b, state = (group.src(number) for number in range(7))
    _all_f32(group, r, w, k, v, a, b, state)
    _linear_attention(group, k, [r, w, v, a, b], state)


def gated_delta_net(group: Group) -> None:
    """GATED_DELTA_NET: q, k, v, g, beta, state; parameter 0 is the number of snapshots."""
    q, k, v, g, beta, state = (group.src(number) for number in range(6))
    dst = group.dst
    _all_f32(group, q, k, v, g, beta, state)
    size, heads, tokens, sequences = (v.dim(axis) for axis in range(4))
    group.require(q.dense & k.dense & v.dense & g.contiguous & beta.contiguous & state.contiguous, "rows have holes")
    for source in (q, k):
        fits = (source.dim(0) == size) & (source.dim(1) > 0) & (source.dim(2) == tokens) & (source.dim(3) > 0)
        fits &= divides(source.dim(1), heads) & divides(source.dim(3), sequences)
        group.require(fits, "queries or keys do not fit")
    group.require(g.has_shape(g.dim(0), heads, tokens, sequences) & ((g.dim(0) == 1) | (g.dim(0) == size)), "bad gate")
    group.require(beta.has_shape(1, heads, tokens, sequences), "beta does not fit")
    group.require(state.has_shape(size, size, heads, sequences), "the state does not fit")
    snapshots = group.param(0)
    group.require((snapshots >= 1) & (snapshots <= 1 << 20), "bad number of snapshots")
    rows = tokens * sequences + snapshots * size * sequences
    group.require(dst.has_shape(size * heads, rows) & dst.exact, "wrong shape of the result")


def solve_tri(group: Group) -> None:
    """SOLVE_TRI: lower triangular A in source 0, right sides in source 1."""
    dst, a, b = group.dst, group.src(0), group.src(1)
    _all_f32(group, a, b)
    fits = (a.dim(0) == a.dim(1)) & (a.dim(1) == b.dim(1)) & (a.dim(2) == b.dim(2)) & (a.dim(3) == b.dim(3))
    group.require(fits & dst.same_shape(b), "shapes differ")
    group.require(a.contiguous & b.contiguous & dst.exact, "only dense tensors")


def lightning_indexer(group: Group) -> None:
    """LIGHTNING_INDEXER: q, k, weights, mask."""
    q, k, weights, mask = (group.src(number) for number in range(4))
    dst, types = group.dst, group.types
    _all_f32(group, q, weights)
    group.require(mask.is_type(types.f16) & types.matrix[k.type], "no kernel for these types")
    group.require(q.dense & k.dense & weights.dense & mask.dense & dst.exact, "rows have holes")
    group.require(k.has_shape(q.dim(0), 1, k.dim(2), q.dim(3)), "the keys do not fit")
    group.require(weights.has_shape(q.dim(1), q.dim(2), 1, q.dim(3)), "the weights do not fit")
    masked = mask.has_shape(k.dim(2), q.dim(2), 1, mask.dim(3)) & (mask.dim(3) > 0) & divides(mask.dim(3), q.dim(3))
    group.require(masked, "the mask does not fit")
    group.require(dst.has_shape(k.dim(2), q.dim(2), 1, q.dim(3)), "wrong shape of the result")


def dsv4_hc_comb(group: Group) -> None:
    """DSV4_HC_COMB: mixes, scale, base; parameter 1 is the number of iterations."""
    dst, mixes, scale, base = group.dst, group.src(0), group.src(1), group.src(2)
    _all_f32(group, mixes, scale, base)
    width = (2 + _DSV4_WIDTH) * _DSV4_WIDTH
    group.require(mixes.has_shape(width, mixes.dim(1)) & base.has_shape(width), "sources do not fit")
    group.require(scale.is_vector() & (scale.dim(0) >= 3), "the scale does not fit")
    group.require(dst.has_shape(_DSV4_WIDTH, _DSV4_WIDTH, mixes.dim(1)), "wrong shape of the result")
    group.require((group.param(1) > 0) & (group.param(1) <= 1 << 10), "bad number of iterations")


def dsv4_hc_pre(group: Group) -> None:
    """DSV4_HC_PRE: x, weights; parameter 1 says whether there is a weight for every element (gated)."""
    dst, x, weights = group.dst, group.src(0), group.src(1)
    _all_f32(group, x, weights)
    gated = group.param(1)
    group.require((gated == 0) | (gated == 1), "unknown kind")
    plain, full = weights.has_shape(x.dim(1), x.dim(2)), weights.has_shape(x.dim(0), x.dim(1), x.dim(2))
    group.require((x.dim(3) == 1) & np.where(gated == 1, full, plain), "the weights do not fit")
    group.require(dst.has_shape(x.dim(0), x.dim(2)), "wrong shape of the result")


def dsv4_hc_post(group: Group) -> None:
    """DSV4_HC_POST: x, residual, post, comb."""
    dst, x, residual, post, comb = group.dst, group.src(0), group.src(1), group.src(2), group.src(3)
    _all_f32(group, x, residual, post, comb)
    width, tokens = residual.dim(1), x.dim(1)
    group.require(x.is_matrix() & residual.has_shape(x.dim(0), width, tokens), "the residual does not fit")
    group.require(post.has_shape(width, tokens) & comb.has_shape(width, width, tokens), "the mixers do not fit")
    group.require(dst.has_shape(x.dim(0), width, tokens), "wrong shape of the result")


def _window(group: Group, source: Ints, kernel: Ints, numbers: tuple[int, int, int]) -> Ints:
    """Length of a convolution's result; `numbers` are the parameters for stride, padding and dilation."""
    step, border, spread = (group.param(number) for number in numbers)
    bounded = (step > 0) & (border >= 0) & (spread > 0)
    bounded &= (step < _MAX_STEP) & (border < _MAX_STEP) & (spread < _MAX_STEP)
    group.require(bounded, "bad parameters")
    return (source + 2 * border - spread * (kernel - 1) - 1) // np.maximum(step, 1) + 1


def im2col(group: Group) -> None:
    """IM2COL: the windows of source 1 as rows; source 0 only says how large they are."""
    dst, kernel, image, types = group.dst, group.src(0), group.src(1), group.types
    f32, f16 = types.f32, types.f16
    typed = (dst.is_type(f32) & image.is_type(f32)) | (dst.is_type(f16) & image.is_type(f32, f16))
    group.require(typed, "no kernel for these types")
    flat = group.param(6)
    group.require((flat == 0) | (flat == 1), "unknown kind")
    two = flat == 1
    width = _window(group, image.dim(0), kernel.dim(0), (0, 2, 4))
    height = (image.dim(1) + 2 * group.param(3) - group.param(5) * (kernel.dim(1) - 1) - 1) // np.maximum(
        group.param(1), 1
    ) + 1
    bounded = (group.param(1) > 0) & (group.param(3) >= 0) & (group.param(5) > 0)
    bounded &= (group.param(1) < _MAX_STEP) & (group.param(3) < _MAX_STEP) & (group.param(5) < _MAX_STEP)
    group.require_if(two, bounded, "bad parameters")
    plane = kernel.dim(0) * kernel.dim(1)
    shape_2d = dst.has_shape(plane * kernel.dim(2), width, height, image.dim(3)) & (kernel.dim(2) == image.dim(2))
    shape_1d = dst.has_shape(plane, width, image.dim(2)) & (kernel.dim(1) == image.dim(1)) & (image.dim(3) == 1)
    group.require(np.where(two, shape_2d, shape_1d), "wrong shape of the result")
    # The kernel walks a plane without looking at its second stride, and keeps the outer strides in 32 bits.
    outer = (image.nb[:, 1:] < 1 << 31).all(axis=1)
    rows = ~two | (image.stride(1) == image.dim(0) * image.size)
    group.require(image.dense & rows & outer & dst.exact, "rows have holes")


def conv_2d(group: Group) -> None:
    """CONV_2D: kernel in source 0, images in source 1."""
    dst, kernel, image, types = group.dst, group.src(0), group.src(1), group.types
    _all_f32(group, image)
    group.require(kernel.is_type(types.f16, types.f32) & kernel.contiguous, "no such kernel")
    width = _window(group, image.dim(0), kernel.dim(0), (0, 2, 4))
    height = _window(group, image.dim(1), kernel.dim(1), (1, 3, 5))
    group.require(kernel.dim(2) == image.dim(2), "the number of channels differs")
    group.require(dst.has_shape(width, height, kernel.dim(3), image.dim(3)) & dst.exact, "wrong shape of the result")
    patch = kernel.dim(0) * kernel.dim(1) * kernel.dim(2) * kernel.size + kernel.dim(3) * 4
    group.require(patch <= _MAX_PATCH, "the kernel is too large")


def conv_2d_dw(group: Group) -> None:
    """CONV_2D_DW: one kernel for each channel, images channel by channel (the interleaved layout has no rule)."""
    dst, kernel, image, types = group.dst, group.src(0), group.src(1), group.types
    _all_f32(group, image)
    group.require(kernel.is_type(types.f16, types.f32) & kernel.exact & image.exact, "only dense tensors")
    width = _window(group, image.dim(0), kernel.dim(0), (0, 2, 4))
    height = _window(group, image.dim(1), kernel.dim(1), (1, 3, 5))
    group.require((kernel.dim(2) == 1) & (kernel.dim(3) == image.dim(2)), "no kernel for each channel")
    group.require(dst.has_shape(width, height, image.dim(2), image.dim(3)) & dst.exact, "wrong shape of the result")
