from __future__ import annotations

import numpy as np
import pytest

from wireherd import ggml
from wireherd.bridge.numbering import NumberMap
from wireherd.errors import UnsupportedOp
from wireherd.protocol.numbering import STOCK_NUMBERING, Numbering
from wireherd.protocol.tensor import HERD_TENSOR

HERE = Numbering(("NONE", "ADD", "UNARY", "GLU", "NEW"), ("ABS", "SILU"), ("REGLU", "SWIGLU"), ("f32", "", "q4", "q9"))
THERE = Numbering(("NONE", "UNARY", "ADD", "GLU"), ("SILU", "ABS"), ("SWIGLU", "REGLU"), ("q4", "f32"))


def rows(*entries: tuple[int, int, int]) -> np.ndarray:
    made = np.zeros(len(entries), HERD_TENSOR)
    for row, (op, param, kind) in zip(made, entries, strict=True):
        row["op"], row["op_params"][0], row["type"] = op, param, kind
    return made


def test_numbers_go_by_name() -> None:
    table = rows((0, 7, 0), (1, 1, 2), (2, 0, 0), (2, 1, 0), (3, 1, 0))
    NumberMap(HERE, THERE).apply(table)
    assert table["op"].tolist() == [0, 2, 1, 1, 3]
    assert table["op_params"][:, 0].tolist() == [7, 1, 1, 0, 0]
    assert table["type"].tolist() == [1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("row", "name"), [((4, 0, 0), "operation NEW"), ((1, 0, 3), "tensor type q9"), ((99, 0, 0), "operation 99")]
)
def test_what_the_other_build_lacks_is_named(row: tuple[int, int, int], name: str) -> None:
    with pytest.raises(UnsupportedOp, match=name):
        NumberMap(HERE, THERE).apply(rows(row))


def test_it_knows_before_it_is_asked() -> None:
    numbers = NumberMap(HERE, THERE)
    assert numbers.knows(1, 0, (0, 2))
    assert numbers.knows(2, 1, (0,))
    assert not numbers.knows(4, 0, (0,))
    assert not numbers.knows(1, 0, (0, 3))
    assert not numbers.knows(2, 5, (0,))
    assert not numbers.knows(-1, 0, ())


def test_equal_builds_need_no_map() -> None:
    assert NumberMap(HERE, HERE).identity
    assert not NumberMap(HERE, THERE).identity
    longer = Numbering((*HERE.ops, "NEWER"), HERE.unary_ops, HERE.glu_ops, HERE.types)
    assert NumberMap(HERE, longer).identity
    assert not NumberMap(longer, HERE).identity


def test_the_librarys_own_numbers_map_to_themselves() -> None:
    own = Numbering.of(*ggml.load().numbering())
    assert NumberMap(own, own).identity


@pytest.mark.parametrize("version", STOCK_NUMBERING, ids=str)
def test_every_stock_version_has_what_models_need(version) -> None:
    own = Numbering.of(*ggml.load().numbering())
    numbers = NumberMap(own, STOCK_NUMBERING[version])
    types = tuple(own.types.index(name) for name in ("f32", "f16", "q4_0", "q4_K", "q6_K"))
    for name in ("MUL_MAT", "ADD", "RMS_NORM", "ROPE", "FLASH_ATTN_EXT", "SET_ROWS", "GET_ROWS"):
        assert numbers.knows(own.ops.index(name), 0, types), name
