"""The shipped tables against a real library, and translation between them."""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib

import numpy as np
import pytest

from wireherd.errors import VersionMismatch
from wireherd.protocol.numbering import STOCK_NUMBERING, Numbering, stock_numbering, translate
from wireherd.protocol.numbering_data import OPS, TYPES
from wireherd.protocol.version import SUPPORTED, Version

#: (version, operations, unary, GLU, types); operations as upstream's static assert of that version says
COUNTS = [
    ("3.6.1", 96, 22, 6, 40),
    ("4.0.0", 96, 22, 6, 42),
    ("4.0.1", 97, 22, 6, 42),
    ("4.0.2", 98, 22, 6, 43),
    ("4.0.3", 101, 22, 6, 43),
    ("5.0.0", 101, 22, 6, 43),
    ("5.1.0", 101, 22, 6, 43),
    ("6.0.0", 101, 22, 6, 43),
    ("7.0.0", 101, 22, 7, 43),
    ("8.0.0", 101, 22, 7, 43),
]


@pytest.mark.parametrize(("version", "ops", "unary_ops", "glu_ops", "types"), COUNTS)
def test_counts(version, ops, unary_ops, glu_ops, types):
    numbering = STOCK_NUMBERING[Version.parse(version)]
    assert [len(names) for names in numbering] == [ops, unary_ops, glu_ops, types]


def test_every_dialect_has_one():
    assert set(SUPPORTED) <= set(STOCK_NUMBERING)


def test_anchors():
    old, new = STOCK_NUMBERING[Version(4, 0, 0)], STOCK_NUMBERING[Version(8, 0, 0)]
    assert old.ops.index("UNARY") == 86
    assert new.ops.index("UNARY") == 91
    assert new.ops[0] == old.ops[0] == "NONE"
    assert new.types[:3] == ("f32", "f16", "q4_0")
    assert new.types[39] == "mxfp4"
    # numbers moved while 3.6.0 kept its own: nothing from there on can be trusted
    assert (
        STOCK_NUMBERING[Version(3, 6, 0)].ops
        == OPS[: OPS.index("CONV_2D") - 1] + OPS[OPS.index("CONV_2D") : OPS.index("GATED_DELTA_NET")]
    )


def test_translation_between_versions():
    old, new = STOCK_NUMBERING[Version(4, 0, 0)], STOCK_NUMBERING[Version(8, 0, 0)]
    there, back = translate(new, old), translate(old, new)
    assert there.ops[new.ops.index("UNARY")] == old.ops.index("UNARY")
    assert there.ops[new.ops.index("LIGHTNING_INDEXER")] == -1
    assert there.glu_ops.tolist() == [0, 1, 2, 3, 4, 5, -1]
    assert (back.ops >= 0).all()
    assert there.ops[back.ops].tolist() == list(range(len(old.ops)))
    assert not there.identical
    for row in translate(STOCK_NUMBERING[Version(5, 0)], new):
        assert row.dtype == np.int32


def test_removed_types_have_no_number():
    new = STOCK_NUMBERING[Version(8, 0)]
    assert translate(new, new).types[4] == -1
    assert not translate(new, new).identical
    same = Numbering(("NONE", "ADD"), ("ABS",), (), ("f32",))
    assert translate(same, same).identical
    raw = Numbering.of(["NONE"], [], [], ["f32", "DEPRECATED", "TYPE_Q4_0_4_4 REMOVED, use Q4_0"])
    assert raw.types == ("f32", "", "")


def test_unknown_patches_are_refused():
    with pytest.raises(VersionMismatch, match=r"8\.0\.3 is not known to this release"):
        stock_numbering(Version(8, 0, 3))
    assert stock_numbering(Version(8, 0, 0)).ops == OPS


def test_against_the_installed_library():
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        pytest.skip("xllamacpp is not installed")
    (path,) = pathlib.Path(spec.origin).parent.glob("*.so")
    library = ctypes.CDLL(str(path))

    def names(function, count):
        call = getattr(library, function)
        call.restype = ctypes.c_char_p
        call.argtypes = [ctypes.c_int]
        return [call(number).decode() for number in range(count)]

    new = STOCK_NUMBERING[Version(8, 0)]
    found = Numbering.of(
        names("ggml_op_name", len(new.ops)),
        names("ggml_unary_op_name", len(new.unary_ops)),
        names("ggml_glu_op_name", len(new.glu_ops)),
        names("ggml_type_name", len(TYPES)),
    )
    assert found == new
