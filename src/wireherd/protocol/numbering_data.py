"""How operations, activations and types are numbered in each stock build; numbers travel raw, names do not.

The newest lists were read from the library of llama.cpp b11739 (`ggml_op_name` and its sisters), those of 7.0 from the
source in llama-cpp-python 0.3.36, 5.0 from b10434's library, and the history of ggml's repository fills the rest: for
each version every commit that carried its number was read, and only what all of them agree on stands here. Upstream
inserts operations in the middle and adds types and activations at the end, so a version is the newest lists without
what came later.
"""

from __future__ import annotations

from typing import NamedTuple

#: `enum ggml_op` by name
OPS: tuple[str, ...] = (
    "NONE", "DUP", "ADD", "ADD_ID", "ADD1", "ACC", "SUB", "MUL", "DIV", "SQR", "SQRT", "LOG", "SIN", "COS",
    "SUM", "SUM_ROWS", "CUMSUM", "MEAN", "ARGMAX", "COUNT_EQUAL", "REPEAT", "REPEAT_BACK", "CONCAT",
    "SILU_BACK", "NORM", "RMS_NORM", "RMS_NORM_BACK", "GROUP_NORM", "L2_NORM", "MUL_MAT", "MUL_MAT_ID",
    "OUT_PROD", "SCALE", "SET", "CPY", "CONT", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "GET_ROWS",
    "GET_ROWS_BACK", "SET_ROWS", "DIAG", "DIAG_MASK_INF", "DIAG_MASK_ZERO", "SOFT_MAX", "SOFT_MAX_BACK", "ROPE",
    "ROPE_BACK", "CLAMP", "CONV_TRANSPOSE_1D", "IM2COL", "IM2COL_BACK", "IM2COL_3D", "COL2IM_1D", "CONV_2D",
    "CONV_3D", "CONV_2D_DW", "CONV_TRANSPOSE_2D", "POOL_1D", "POOL_2D", "POOL_2D_BACK", "UPSCALE", "PAD",
    "PAD_REFLECT_1D", "ROLL", "ARANGE", "TIMESTEP_EMBEDDING", "ARGSORT", "TOP_K", "LEAKY_RELU", "TRI", "FILL",
    "FLASH_ATTN_EXT", "FLASH_ATTN_BACK", "SSM_CONV", "SSM_SCAN", "WIN_PART", "WIN_UNPART", "GET_REL_POS",
    "ADD_REL_POS", "RWKV_WKV6", "GATED_LINEAR_ATTN", "RWKV_WKV7", "SOLVE_TRI", "GATED_DELTA_NET",
    "LIGHTNING_INDEXER", "DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST", "UNARY", "MAP_CUSTOM1", "MAP_CUSTOM2",
    "MAP_CUSTOM3", "CUSTOM", "CROSS_ENTROPY_LOSS", "CROSS_ENTROPY_LOSS_BACK", "OPT_STEP_ADAMW", "OPT_STEP_SGD",
    "GLU",
)  # fmt: skip

#: `enum ggml_unary_op` by name
UNARY_OPS: tuple[str, ...] = (
    "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU", "HARDSWISH",
    "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC",
)  # fmt: skip

#: `enum ggml_glu_op` by name
GLU_OPS: tuple[str, ...] = (
    "REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP",
)  # fmt: skip

#: `enum ggml_type` by name; empty where a type was removed
TYPES: tuple[str, ...] = (
    "f32", "f16", "q4_0", "q4_1", "", "", "q5_0", "q5_1", "q8_0", "q8_1", "q2_K", "q3_K", "q4_K", "q5_K",
    "q6_K", "q8_K", "iq2_xxs", "iq2_xs", "iq3_xxs", "iq1_s", "iq4_nl", "iq3_s", "iq2_s", "iq4_xs", "i8", "i16",
    "i32", "i64", "f64", "iq1_m", "bf16", "", "", "", "tq1_0", "tq2_0", "", "", "", "mxfp4", "nvfp4", "q1_0",
    "q2_0",
)  # fmt: skip


class Difference(NamedTuple):
    """What a version lacks of the newest lists."""

    #: operations that do not exist yet
    missing_ops: frozenset[str] = frozenset()
    #: operations from here on changed their numbers while the version kept its own
    ops_until: str = ""
    glu_ops: int = len(GLU_OPS)
    types: int = len(TYPES)


_DSV4 = frozenset({"DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST"})
_INDEXER = _DSV4 | {"LIGHTNING_INDEXER"}
_COL2IM = _INDEXER | {"COL2IM_1D"}

#: version (major, minor, patch) → what it lacks; 6.0 was not at hand, it has what 5.1 and 7.0 agree on
DIFFERENCES: dict[tuple[int, int, int], Difference] = {
    (3, 6, 0): Difference(_COL2IM, ops_until="GATED_DELTA_NET", glu_ops=6, types=40),
    (3, 6, 1): Difference(_COL2IM, glu_ops=6, types=40),
    (4, 0, 0): Difference(_COL2IM, glu_ops=6, types=42),
    (4, 0, 1): Difference(_INDEXER, glu_ops=6, types=42),
    (4, 0, 2): Difference(_DSV4, glu_ops=6),
    (4, 0, 3): Difference(glu_ops=6),
    (5, 0, 0): Difference(glu_ops=6),
    (5, 1, 0): Difference(glu_ops=6),
    (6, 0, 0): Difference(glu_ops=6),
    (7, 0, 0): Difference(),
    (8, 0, 0): Difference(),
}
