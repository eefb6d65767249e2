"""One graph or more for every op that the worker takes, made by ggml's builders: op name → builders."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from building import BOOL, F32, I64, INT, SIZE, Builder

Case = Callable[[Builder], int]
_SECTIONS = (ctypes.c_int * 4)(8, 8, 8, 8)


def _t(kind: str, *ne: int) -> Callable[[Builder], int]:
    return lambda b: b.tensor(kind, *ne)


def _rope(b: Builder, mode: int, factors: bool = False, dims: int = 64, kind: str = "f32") -> int:
    x, pos = b.tensor(kind, 64, 4, 5), b.tensor("i32", 5 * (4 if mode & 8 else 1))
    c = b.tensor("f32", 32) if factors else 0
    floats = (F32(10000.0), F32(1.0), F32(0.0), F32(1.0), F32(32.0), F32(1.0))
    if mode & 8:
        return b.call("ggml_rope_multi", x, pos, c, INT(dims), _SECTIONS, INT(mode), INT(4096), *floats)
    return b.call("ggml_rope_ext", x, pos, c, INT(dims), INT(mode), INT(4096), *floats)


def _flash(b: Builder, kv: str = "f16", sinks: bool = False, tokens: int = 7, masked: bool = True) -> int:
    q, k, v = b.tensor("f32", 64, tokens, 8), b.tensor(kv, 64, 256, 2), b.tensor(kv, 64, 256, 2)
    mask = b.tensor("f16", 256, tokens) if masked else 0
    out = b.call("ggml_flash_attn_ext", q, k, v, mask, F32(0.125), F32(0.0), F32(0.0))
    if sinks:
        b.set("ggml_flash_attn_ext_add_sinks", out, b.tensor("f32", 8))
    return out


def _soft_max(b: Builder, mask: str | None, sinks: bool = False) -> int:
    out = b.call(
        "ggml_soft_max_ext", b.tensor("f32", 32, 5, 4), b.tensor(mask, 32, 8) if mask else 0, F32(1.0), F32(0.0)
    )
    if sinks:
        b.set("ggml_soft_max_add_sinks", out, b.tensor("f32", 4))
    return out


def _moe(b: Builder, kind: str = "q4_0") -> int:
    probs = b.call("ggml_soft_max", b.tensor("f32", 8, 6))
    order = b.call("ggml_argsort", probs, INT(1))
    ids = b.call("ggml_view_2d", order, I64(2), I64(6), SIZE(32), SIZE(0))
    return b.call("ggml_mul_mat_id", b.tensor(kind, 64, 16, 8), b.tensor("f32", 64, 1, 6), ids)


def _ssm_scan(b: Builder, mamba1: bool) -> int:
    state, dim, heads, groups, tokens, seqs = 16, 1 if mamba1 else 8, 4, 1, 3, 2
    s = b.tensor("f32", state, dim, heads, 5)
    x, dt = b.tensor("f32", dim, heads, tokens, seqs), b.tensor("f32", heads, tokens, seqs)
    a = b.tensor("f32", state if mamba1 else 1, heads)
    bc = [b.tensor("f32", state, groups, tokens, seqs) for _ in range(2)]
    return b.call("ggml_ssm_scan", s, x, dt, a, *bc, b.tensor("i32", seqs), I64(1))


def _linear(b: Builder, name: str, sources: int, *extra: object) -> int:
    size, heads, tokens, seqs = 32, 2, 4, 2
    first = [b.tensor("f32", size, heads, tokens) for _ in range(sources)]
    if name == "ggml_rwkv_wkv6":
        first[3] = b.tensor("f32", size, heads)
    return b.call(name, *first, b.tensor("f32", size * size * heads, seqs), *extra)


def _delta(b: Builder, wide_gate: bool) -> int:
    size, heads, tokens, seqs = 32, 4, 3, 2
    q, k, v = (
        b.tensor("f32", size, 2, tokens, seqs),
        b.tensor("f32", size, 2, tokens, seqs),
        b.tensor("f32", size, heads, tokens, seqs),
    )
    g, beta = b.tensor("f32", size if wide_gate else 1, heads, tokens, seqs), b.tensor("f32", 1, heads, tokens, seqs)
    return b.call("ggml_gated_delta_net", q, k, v, g, beta, b.tensor("f32", size, size, heads, seqs), I64(1))


def _binary(name: str) -> list[Case]:
    def make(left: str, right: str, *ne: int) -> Case:
        return lambda b: b.call(name, b.tensor(left, 16, 3, 2), b.tensor(right, *ne))

    return [
        make("f32", "f32", 16, 3, 2),
        make("f32", "f32", 16),
        make("f32", "f32", 1, 3),
        make("f16", "f32", 16),
        make("f16", "f16", 16, 1, 2),
    ]


def _one(name: str, *extra: object, kind: str = "f32", ne: tuple[int, ...] = (16, 3, 2)) -> Case:
    return lambda b: b.call(name, b.tensor(kind, *ne), *extra)


def _over(b: Builder) -> int:
    return b.call("ggml_permute", b.tensor("f32", 16, 3, 2), INT(0), INT(2), INT(1), INT(3))


CASES: dict[str, list[Case]] = {
    "VIEW": [lambda b: b.call("ggml_view_2d", b.tensor("f32", 16, 4), I64(8), I64(3), SIZE(64), SIZE(32))],
    "RESHAPE": [lambda b: b.call("ggml_reshape_2d", b.tensor("f32", 16, 4), I64(8), I64(8))],
    "PERMUTE": [_over],
    "TRANSPOSE": [lambda b: b.call("ggml_transpose", b.tensor("f32", 16, 4))],
    "DUP": [_one("ggml_dup"), _one("ggml_dup", kind="q4_0", ne=(32, 2))],
    "CONT": [lambda b: b.call("ggml_cont", _over(b)), lambda b: b.call("ggml_cont_2d", _over(b), I64(32), I64(3)), lambda b: b.call("ggml_cont", b.call("ggml_transpose", b.tensor("f16", 8, 4)))],
    "CPY": [
        lambda b: b.call("ggml_cpy", b.tensor("f32", 64, 2), b.tensor("f16", 64, 2)),
        lambda b: b.call("ggml_cpy", b.tensor("f32", 64, 2), b.tensor("q8_0", 128)),
        lambda b: b.call("ggml_cpy", b.tensor("q4_0", 64, 2), b.tensor("f32", 64, 2)),
        lambda b: b.call("ggml_cast", b.tensor("f32", 64, 2), INT(1)),
        lambda b: b.call("ggml_cast", b.tensor("f32", 64, 2), INT(26)),
        lambda b: b.call("ggml_cpy", _over(b), b.tensor("f32", 96)),
    ],
    "ADD": _binary("ggml_add"), "SUB": _binary("ggml_sub"), "MUL": _binary("ggml_mul"), "DIV": _binary("ggml_div"),
    "ADD_ID": [lambda b: b.call("ggml_add_id", b.tensor("f32", 16, 2, 3), b.tensor("f32", 16, 8), b.tensor("i32", 2, 3))],
    "SCALE": [_one("ggml_scale", F32(2.0)), _one("ggml_scale_bias", F32(2.0), F32(1.0)), _one("ggml_scale_inplace", F32(2.0))],
    "NORM": [_one("ggml_norm", F32(1e-5))], "RMS_NORM": [_one("ggml_rms_norm", F32(1e-5)), lambda b: b.call("ggml_mul", b.call("ggml_rms_norm", b.tensor("f32", 16, 3), F32(1e-5)), b.tensor("f32", 16))],
    "L2_NORM": [_one("ggml_l2_norm", F32(1e-5))],
    "GROUP_NORM": [_one("ggml_group_norm", INT(4), F32(1e-5), ne=(8, 2, 8))],
    "MUL_MAT": [
        lambda b: b.call("ggml_mul_mat", b.tensor("f32", 32, 5), b.tensor("f32", 32, 3)),
        lambda b: b.call("ggml_mul_mat", b.tensor("q4_0", 64, 8, 2), b.tensor("f32", 64, 3, 4)),
        lambda b: b.call("ggml_mul_mat", b.tensor("q4_K", 256, 8), b.tensor("f32", 256, 1)),
        lambda b: b.call("ggml_mul_mat", b.tensor("f16", 64, 8, 2), b.call("ggml_permute", b.tensor("f32", 64, 4, 3), INT(0), INT(2), INT(1), INT(3))),
    ],
    "MUL_MAT_ID": [_moe, lambda b: _moe(b, "f32"), lambda b: b.call("ggml_mul_mat_id", b.tensor("q8_0", 32, 16, 4), b.tensor("f32", 32, 2, 5), b.tensor("i32", 2, 5))],
    "OUT_PROD": [lambda b: b.call("ggml_out_prod", b.tensor("f32", 8, 5), b.tensor("f32", 6, 5))],
    "GET_ROWS": [
        lambda b: b.call("ggml_get_rows", b.tensor("q4_0", 64, 9), b.tensor("i32", 5)),
        lambda b: b.call("ggml_get_rows", b.tensor("f32", 1, 8, 6), b.tensor("i32", 2, 6)),
        lambda b: b.call("ggml_get_rows", b.tensor("i32", 4, 8), b.tensor("i32", 3)),
        lambda b: b.call("ggml_get_rows", b.tensor("bf16", 4, 8), b.tensor("i32", 3)),
    ],
    "SET_ROWS": [
        lambda b: b.call("ggml_set_rows", b.tensor("f16", 64, 9), b.tensor("f32", 64, 3), b.tensor("i64", 3)),
        lambda b: b.call("ggml_set_rows", b.tensor("q8_0", 64, 9), b.tensor("f32", 64, 3), b.tensor("i64", 3)),
        lambda b: b.call("ggml_set_rows", b.tensor("f32", 1, 90), b.tensor("f32", 1, 30), b.tensor("i32", 30)),
    ],
    "SOFT_MAX": [_one("ggml_soft_max"), lambda b: _soft_max(b, "f16"), lambda b: _soft_max(b, "f32", True), lambda b: _soft_max(b, None)],
    "ROPE": [lambda b: _rope(b, 0), lambda b: _rope(b, 2, True), lambda b: _rope(b, 2, dims=32), lambda b: _rope(b, 8), lambda b: _rope(b, 40), lambda b: _rope(b, 24, dims=32), lambda b: _rope(b, 0, kind="f16")],
    "FLASH_ATTN_EXT": [_flash, lambda b: _flash(b, "q8_0"), lambda b: _flash(b, "f32", True), lambda b: _flash(b, tokens=1), lambda b: _flash(b, masked=False), lambda b: _flash(b, tokens=70)],
    **{name: [_one(f"ggml_{name.lower()}")] for name in ("SQR", "SQRT", "LOG", "SIN", "COS", "SUM_ROWS", "MEAN", "SUM", "CUMSUM")},
    "CLAMP": [_one("ggml_clamp", F32(-1.0), F32(1.0))],
    "LEAKY_RELU": [_one("ggml_leaky_relu", F32(0.1), BOOL(False))],
    "ARGSORT": [_one("ggml_argsort", INT(0)), _one("ggml_argsort", INT(1))],
    "TOP_K": [_one("ggml_top_k", INT(4))],
    "ARGMAX": [_one("ggml_argmax", ne=(16, 5))],
    "REPEAT": [lambda b: b.call("ggml_repeat", b.tensor("f32", 8, 1), b.tensor("f32", 16, 3))],
    "CONCAT": [lambda b: b.call("ggml_concat", b.tensor("f32", 8, 2), b.tensor("f32", 8, 3), INT(1)), lambda b: b.call("ggml_concat", b.tensor("f16", 8, 2), b.tensor("f16", 4, 2), INT(0)), lambda b: b.call("ggml_concat", b.tensor("q4_0", 32, 2), b.tensor("q4_0", 64, 2), INT(0))],
    "ACC": [lambda b: b.call("ggml_acc", b.tensor("f32", 16, 4), b.tensor("f32", 4, 2), SIZE(64), SIZE(256), SIZE(256), SIZE(32))],
    "SET": [lambda b: b.call("ggml_set", b.tensor("f32", 16, 4), b.tensor("f32", 4, 2), SIZE(64), SIZE(256), SIZE(256), SIZE(32)), lambda b: b.call("ggml_set_inplace", b.tensor("f32", 16, 4), b.tensor("f32", 16, 2), SIZE(64), SIZE(256), SIZE(256), SIZE(64))],
    "DIAG": [_one("ggml_diag", ne=(8, 1, 2))],
    "DIAG_MASK_INF": [_one("ggml_diag_mask_inf", INT(2))], "DIAG_MASK_ZERO": [_one("ggml_diag_mask_zero", INT(2))],
    "TRI": [_one("ggml_tri", INT(kind), ne=(8, 8, 2)) for kind in range(4)],
    "FILL": [_one("ggml_fill", F32(1.5)), _one("ggml_fill", F32(1.5), kind="f16")],
    "ARANGE": [lambda b: b.call("ggml_arange", F32(0.0), F32(10.0), F32(1.0))],
    "TIMESTEP_EMBEDDING": [_one("ggml_timestep_embedding", INT(16), INT(1000), ne=(5,)), _one("ggml_timestep_embedding", INT(15), INT(1000), ne=(5,))],
    "ROLL": [_one("ggml_roll", INT(3), INT(-1), INT(0), INT(0))],
    "PAD": [_one("ggml_pad", INT(1), INT(2), INT(0), INT(0)), _one("ggml_pad_circular", INT(1), INT(2), INT(0), INT(0))],
    "PAD_REFLECT_1D": [_one("ggml_pad_reflect_1d", INT(3), INT(2))],
    "UPSCALE": [_one("ggml_upscale", INT(2), INT(mode)) for mode in range(3)] + [lambda b: b.call("ggml_interpolate", b.tensor("f32", 8, 6, 2), I64(5), I64(9), I64(2), I64(1), INT(257))],
    "POOL_1D": [_one("ggml_pool_1d", INT(kind), INT(4), INT(2), INT(1)) for kind in range(2)],
    "POOL_2D": [_one("ggml_pool_2d", INT(kind), INT(2), INT(2), INT(2), INT(2), F32(0.0), F32(0.0), ne=(16, 8, 3)) for kind in range(2)],
    "SSM_CONV": [lambda b: b.call("ggml_ssm_conv", b.tensor("f32", 9, 16, 2), b.tensor("f32", 4, 16))],
    "SSM_SCAN": [lambda b: _ssm_scan(b, True), lambda b: _ssm_scan(b, False)],
    "RWKV_WKV6": [lambda b: _linear(b, "ggml_rwkv_wkv6", 5)],
    "RWKV_WKV7": [lambda b: _linear(b, "ggml_rwkv_wkv7", 6)],
    "GATED_LINEAR_ATTN": [lambda b: _linear(b, "ggml_gated_linear_attn", 4, F32(0.5))],
    "GATED_DELTA_NET": [lambda b: _delta(b, False), lambda b: _delta(b, True)],
    "SOLVE_TRI": [lambda b: b.call("ggml_solve_tri", b.tensor("f32", 8, 8, 2), b.tensor("f32", 5, 8, 2), BOOL(True), BOOL(True), BOOL(False))],
    "LIGHTNING_INDEXER": [lambda b: b.call("ggml_lightning_indexer", b.tensor("f32", 64, 4, 3), b.tensor("f16", 64, 1, 32), b.tensor("f32", 4, 3), b.tensor("f16", 32, 3))],
    "DSV4_HC_COMB": [lambda b: b.call("ggml_dsv4_hc_comb", b.tensor("f32", 24, 3), b.tensor("f32", 3), b.tensor("f32", 24), F32(1e-5), INT(2))],
    "DSV4_HC_PRE": [lambda b: b.call("ggml_dsv4_hc_pre", b.tensor("f32", 16, 4, 3), b.tensor("f32", 4, 3))],
    "DSV4_HC_POST": [lambda b: b.call("ggml_dsv4_hc_post", b.tensor("f32", 16, 3), b.tensor("f32", 16, 4, 3), b.tensor("f32", 4, 3), b.tensor("f32", 4, 4, 3))],
    "IM2COL": [
        lambda b: b.call("ggml_im2col", b.tensor("f16", 3, 3, 2, 4), b.tensor("f32", 8, 8, 2), INT(1), INT(1), INT(1), INT(1), INT(1), INT(1), BOOL(True), INT(1)),
        lambda b: b.call("ggml_im2col", b.tensor("f16", 3, 2, 4), b.tensor("f32", 12, 2), INT(1), INT(0), INT(1), INT(0), INT(1), INT(0), BOOL(False), INT(0)),
    ],
    "CONV_2D": [lambda b: b.call("ggml_conv_2d_direct", b.tensor("f16", 3, 3, 2, 4), b.tensor("f32", 8, 8, 2, 2), *[INT(1)] * 6)],
    "CONV_2D_DW": [lambda b: b.call("ggml_conv_2d_dw_direct", b.tensor("f32", 3, 3, 1, 4), b.tensor("f32", 8, 8, 4), *[INT(1)] * 6)],
    "UNARY": [_one("ggml_unary", INT(number)) for number in range(22)] + [_one("ggml_silu", kind="f16"), _one("ggml_xielu", F32(1.0), F32(1.0), F32(1.0), F32(0.0))],
    "GLU": [_one("ggml_glu", INT(kind), BOOL(swapped)) for kind in range(6) for swapped in (False, True)] + [lambda b: b.call("ggml_swiglu_split", b.tensor("f16", 16, 3), b.tensor("f16", 16, 3)), lambda b: b.call("ggml_swiglu_oai", b.tensor("f32", 16, 3), b.tensor("f32", 16, 3), F32(1.7), F32(7.0))],
}  # fmt: skip
