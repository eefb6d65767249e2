"""Operation and type numbers of one build, written as those of another.

The numbers travel raw and shift between builds, so both ends' names are laid side by side once
(`protocol.numbering.translate`) and every record passes through the resulting tables: `op`, `type`, and for UNARY and
GLU the sub-operation in the first parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.errors import UnsupportedOp
from wireherd.protocol.numbering import Numbering, translate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_UNARY: Final = "UNARY"
_GLU: Final = "GLU"


class NumberMap:
    """The way from one build's numbers to another's."""

    def __init__(self, source: Numbering, target: Numbering) -> None:
        self.source = source
        tables = translate(source, target)
        self._ops, self._unary_ops, self._glu_ops, self._types = tables
        self._unary = _number(source.ops, _UNARY)
        self._glu = _number(source.ops, _GLU)
        #: nothing to map: whatever has a name here has the same number there
        self.identity = all(_same(names, table) for names, table in zip(source, tables, strict=True))

    def knows(self, op: int, first_param: int, types: Iterable[int]) -> bool:
        """Whether the other build has the operation (with its sub-operation) and all the types."""
        if self.identity:
            return True
        if not _has(self._ops, op) or not all(_has(self._types, number) for number in types):
            return False
        if op == self._unary:
            return _has(self._unary_ops, first_param)
        if op == self._glu:
            return _has(self._glu_ops, first_param)
        return True

    def apply(self, rows: NDArray[np.void]) -> None:
        """Rewrite `op`, `type` and the sub-operations of records in place.

        Raises:
            UnsupportedOp: the other build lacks one of them; the sentence names it.
        """
        if self.identity or not len(rows):
            return
        ops = rows["op"].astype(np.int64)
        for kind, table, names in (
            (self._unary, self._unary_ops, self.source.unary_ops),
            (self._glu, self._glu_ops, self.source.glu_ops),
        ):
            mine = np.flatnonzero(ops == kind)
            if len(mine):
                params = rows["op_params"]
                params[mine, 0] = _map(params[mine, 0].astype(np.int64), table, names, "operation")
        rows["op"] = _map(ops, self._ops, self.source.ops, "operation")
        rows["type"] = _map(rows["type"].astype(np.int64), self._types, self.source.types, "tensor type")


def _number(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else -1


def _same(names: tuple[str, ...], table: NDArray[np.int32]) -> bool:
    return all(not name or int(table[number]) == number for number, name in enumerate(names))


def _has(table: NDArray[np.int32], number: int) -> bool:
    return 0 <= number < len(table) and int(table[number]) >= 0


def _map(numbers: NDArray[np.int64], table: NDArray[np.int32], names: tuple[str, ...], what: str) -> NDArray[np.int32]:
    known = (numbers >= 0) & (numbers < len(table))
    mapped = np.where(known, table[np.where(known, numbers, 0)], np.int32(-1))
    missing = np.flatnonzero(mapped < 0)
    if len(missing):
        number = int(numbers[missing[0]])
        name = names[number] if 0 <= number < len(names) else str(number)
        raise UnsupportedOp(f"the worker's build of ggml has no {what} {name}")
    return mapped
