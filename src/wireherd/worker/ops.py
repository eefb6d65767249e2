"""The allow-list: every op that may come over the network, how many sources it has, and the rule for its shapes.

Ops are known by name, because their numbers differ between builds. An op that is not here is refused by its name:
CUSTOM and MAP_CUSTOM* for ever, since they carry function pointers in their parameters; the ops of training, since
nobody runs them over RPC; the rest until somebody writes their rule.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from wireherd.worker import shapes, shapes_rows, shapes_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wireherd.worker.facts import Group

    Check = Callable[[Group], None]

#: ops that only rename memory; nothing runs and nothing is written
VIEWS: Final = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"})
#: backend API from which the ops that ggml changed lately mean what their rule says
_YOUNG_API: Final = 3


class Rule(NamedTuple):
    """One op: at least `required` sources, at most `allowed`, no gaps before `required`; `check` judges the shapes.

    `params` is how many of the integer parameters mean something: the others must be 0, so that a variant which a newer
    ggml puts there is refused and not mistaken. `indices` names the source that holds indices and the operand and
    dimension they must stay within: (source, operand, axis), where operand -1 is the result. `api` is the first backend
    API whose ggml has the op as described.
    """

    required: int
    allowed: int
    check: Check
    params: int = 0
    indices: tuple[int, int, int] | None = None
    api: int = 0


_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(VIEWS, Rule(1, 1, shapes.view, 16)),
    **dict.fromkeys(("DUP", "CONT"), Rule(1, 1, shapes.copy)),
    "CPY": Rule(1, 2, shapes.cpy),
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), Rule(2, 2, shapes.binary)),
    "ADD_ID": Rule(3, 3, shapes.add_id, indices=(2, 1, 1)),
    "SCALE": Rule(1, 1, shapes.scale, 2),
    **dict.fromkeys(("NORM", "RMS_NORM", "L2_NORM"), Rule(1, 1, shapes.norm, 1)),
    "GROUP_NORM": Rule(1, 1, shapes.group_norm, 2),
    "MUL_MAT": Rule(2, 2, shapes.mul_mat, 2),
    "MUL_MAT_ID": Rule(3, 3, shapes.mul_mat_id, 1, indices=(2, 0, 2)),
    "OUT_PROD": Rule(2, 2, shapes.out_prod),
    "GET_ROWS": Rule(2, 2, shapes.get_rows, indices=(1, 0, 1)),
    "SET_ROWS": Rule(2, 3, shapes.set_rows, indices=(1, -1, 1)),
    "SOFT_MAX": Rule(1, 3, shapes.soft_max, 2),
    "ROPE": Rule(2, 3, shapes.rope, 16),
    "FLASH_ATTN_EXT": Rule(3, 5, shapes.flash_attn, 4),
    **dict.fromkeys(("SQR", "SQRT", "LOG", "SIN", "COS"), Rule(1, 1, shapes_rows.elementwise)),
    "CLAMP": Rule(1, 1, shapes_rows.clamp, 2),
    "LEAKY_RELU": Rule(1, 1, shapes_rows.leaky_relu, 1),
    "ARGSORT": Rule(1, 1, shapes_rows.argsort, 1),
    "TOP_K": Rule(1, 1, shapes_rows.top_k),
    "ARGMAX": Rule(1, 1, shapes_rows.argmax),
    **dict.fromkeys(("SUM_ROWS", "MEAN"), Rule(1, 1, shapes_rows.sum_rows)),
    "SUM": Rule(1, 1, shapes_rows.total),
    "CUMSUM": Rule(1, 1, shapes_rows.cumsum),
    "REPEAT": Rule(1, 1, shapes_rows.repeat),
    "CONCAT": Rule(2, 2, shapes_rows.concat, 1),
    **dict.fromkeys(("ACC", "SET"), Rule(2, 2, shapes_rows.accumulate, 5)),
    "DIAG": Rule(1, 1, shapes_rows.diag),
    **dict.fromkeys(("DIAG_MASK_INF", "DIAG_MASK_ZERO"), Rule(1, 1, shapes_rows.diag_mask, 1)),
    "TRI": Rule(1, 1, shapes_rows.tri, 1),
    "FILL": Rule(1, 1, shapes_rows.fill, 1),
    "ARANGE": Rule(0, 0, shapes_rows.arange, 3),
    "TIMESTEP_EMBEDDING": Rule(1, 1, shapes_rows.timestep_embedding, 2),
    "ROLL": Rule(1, 1, shapes_rows.roll, 4),
    "PAD": Rule(1, 1, shapes_rows.pad, 9),
    "PAD_REFLECT_1D": Rule(1, 1, shapes_rows.pad_reflect, 2),
    "UPSCALE": Rule(1, 1, shapes_rows.upscale, 1),
    **dict.fromkeys(("POOL_1D", "POOL_2D"), Rule(1, 1, shapes_rows.pool, 7)),
    "SSM_CONV": Rule(2, 2, shapes_state.ssm_conv),
    "SSM_SCAN": Rule(7, 7, shapes_state.ssm_scan, 1, indices=(6, 0, 3), api=_YOUNG_API),
    "RWKV_WKV6": Rule(6, 6, shapes_state.rwkv_wkv6),
    "RWKV_WKV7": Rule(7, 7, shapes_state.rwkv_wkv7),
    "GATED_LINEAR_ATTN": Rule(5, 5, shapes_state.gated_linear_attn, 1),
    "GATED_DELTA_NET": Rule(6, 6, shapes_state.gated_delta_net, 1, api=_YOUNG_API),
    "SOLVE_TRI": Rule(2, 2, shapes_state.solve_tri),
    "LIGHTNING_INDEXER": Rule(4, 4, shapes_state.lightning_indexer, api=_YOUNG_API),
    "DSV4_HC_COMB": Rule(3, 3, shapes_state.dsv4_hc_comb, 2, api=_YOUNG_API),
    "DSV4_HC_PRE": Rule(2, 2, shapes_state.dsv4_hc_pre, 2, api=_YOUNG_API),
    "DSV4_HC_POST": Rule(4, 4, shapes_state.dsv4_hc_post, api=_YOUNG_API),
    "IM2COL": Rule(2, 2, shapes_state.im2col, 7),
    "CONV_2D": Rule(2, 2, shapes_state.conv_2d, 6),
    "CONV_2D_DW": Rule(2, 2, shapes_state.conv_2d_dw, 6),
}

#: ops whose result holds row positions below the length of source 0's rows
INDEX_MAKERS: Final = frozenset({"ARGSORT", "TOP_K"})


class OpTable:
    """The rules by the numbers of one library.

    Args:
        ops: names of the ops; the index is the number.
        unary: names of the unary ops.
        glu: names of the GLU ops.
        api: backend API version of the library.
    """

    def __init__(self, ops: Sequence[str], unary: Sequence[str], glu: Sequence[str], api: int) -> None:
        rules = {name: rule for name, rule in _RULES.items() if rule.api <= api}
        rules["UNARY"] = Rule(1, 1, partial(shapes_rows.unary, names=tuple(unary)), 5)
        rules["GLU"] = Rule(1, 2, partial(shapes_rows.glu, names=tuple(glu)), 4)
        self.names = tuple(ops)
        self.rules: list[Rule | None] = [rules.get(name) for name in ops]
        self.none = self.names.index("NONE")
        self.cpy = self.names.index("CPY")
        self.views = frozenset(number for number, name in enumerate(ops) if name in VIEWS)
        self.index_makers = frozenset(number for number, name in enumerate(ops) if name in INDEX_MAKERS)

    def name(self, number: int) -> str:
        """Name of an op for messages, also when the number is unknown."""
        return self.names[number] if 0 <= number < len(self.names) else f"operation {number}"
