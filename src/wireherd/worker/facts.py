"""Columns of a graph's tensors, and what follows from them row by row: the raw material of every shape rule.

All arithmetic is vectorised over the tensors of a graph; `Facts` is made only after `validate` has bounded every
number, so nothing here can overflow. The formulas for size and contiguity are ggml's (`ggml_nbytes`,
`ggml_is_contiguous*`), because the kernels rely on exactly these.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

#: dimensions of a tensor
DIMS: Final = 4
#: sources a tensor can have
SOURCES: Final = 10
#: flag of a node that is to be computed; nodes without it are carried along but skipped
COMPUTE: Final = 16
#: the flags that mean something here: input, output, compute; those of training would turn leaves into nodes
FLAGS: Final = 19

#: types that hold numbers one by one, so that they are no weights for a matrix product
_SCALARS: Final = frozenset({"i8", "i16", "i32", "i64", "f64", "q8_1", "q8_K"})
#: types that ggml can read but not write (no quantisation kernel without extra data)
_READ_ONLY: Final = frozenset({"iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"})


class Types:
    """The element types of one library: sizes by number, and the sets that the rules speak of.

    Args:
        names: type names; the index is the number.
        block: elements in a block, by number; 0 for removed types.
        size: bytes of a block, by number.
    """

    def __init__(self, names: Sequence[str], block: NDArray[Any], size: NDArray[Any]) -> None:
        count = len(names)
        self.names = tuple(names)
        self.block = np.asarray(block, np.int64)[:count]
        self.size = np.asarray(size, np.int64)[:count]
        self.known = (self.block > 0) & (self.size > 0)
        # Kernels load whole elements, and vector code assumes their natural alignment: for blocks, that of the
        # largest field inside, which the lowest set bit of the block's size bounds.
        self.align = np.minimum(self.size & -self.size, np.where(self.block == 1, 8, 4)).clip(1)
        numbers = {name.lower(): number for number, name in enumerate(names) if self.known[number]}
        self.f32 = numbers.get("f32", -1)
        self.f16 = numbers.get("f16", -1)
        self.bf16 = numbers.get("bf16", -1)
        self.i8 = numbers.get("i8", -1)
        self.i16 = numbers.get("i16", -1)
        self.i32 = numbers.get("i32", -1)
        self.i64 = numbers.get("i64", -1)
        self.matrix = self.known & ~self._members(_SCALARS)
        self.writable = self.matrix & ~self._members(_READ_ONLY)
        self.quantised = self.matrix & (self.block > 1)

    def _members(self, wanted: frozenset[str]) -> Bools:
        lowered = {name.lower() for name in wanted}
        return np.array([name.lower() in lowered for name in self.names], np.bool_)


class Facts:
    """Columns of n tensors. `type`, `op`, `flags` int64[n]; `ne`, `nb` int64[n,4]; `params` int32[n,16].

    `room` is how many bytes lie between a tensor's first byte and the end of its buffer.
    """

    def __init__(self, types: Types, rows: NDArray[Any], room: Ints | None) -> None:
        self.types = types
        self.type: Ints = rows["type"].astype(np.int64)
        self.op: Ints = rows["op"].astype(np.int64)
        self.flags: Ints = rows["flags"].astype(np.int64)
        self.ne: Ints = np.ascontiguousarray(rows["ne"], np.int64)
        self.nb: Ints = np.ascontiguousarray(rows["nb"]).astype(np.int64)
        self.params: NDArray[np.int32] = np.ascontiguousarray(rows["op_params"])
        self.room: Ints = np.full(len(rows), 1 << 62, np.int64) if room is None else room
        self.block: Ints = types.block[self.type]
        self.size: Ints = types.size[self.type]

    @cached_property
    def elements(self) -> Ints:
        """Number of elements, int64[n]."""
        return np.asarray(self.ne.prod(axis=1))

    @cached_property
    def empty(self) -> Bools:
        """No elements at all: ggml computes no such node."""
        return np.asarray((self.ne == 0).any(axis=1))

    @cached_property
    def nbytes(self) -> Ints:
        """Bytes from the first to the last byte of each tensor, int64[n]."""
        first = np.where(self.block == 1, self.size + (self.ne[:, 0] - 1) * self.nb[:, 0], 0)
        first = np.where(self.block == 1, first, self.ne[:, 0] * self.nb[:, 0] // self.block)
        rest = ((self.ne[:, 1:] - 1) * self.nb[:, 1:]).sum(axis=1)
        return np.where(self.empty, 0, first + rest)

    @cached_property
    def dense(self) -> Bools:
        """The first stride is the size of a block (kernels that ask for it do so even for one column)."""
        return np.asarray(self.nb[:, 0] == self.size)

    @cached_property
    def row_dense(self) -> Bools:
        """`ggml_is_contiguous_rows`: rows without holes, or of one block."""
        return np.asarray((self.ne[:, 0] == self.block) | self.dense)

    def _contiguous_from(self, free: int) -> Bools:
        ok = self.row_dense
        expected = self.size * (self.ne[:, 0] // self.block)
        for axis in range(1, DIMS):
            if axis > free:
                ok = ok & ((self.ne[:, axis] == 1) | (self.nb[:, axis] == expected))
                expected = expected * self.ne[:, axis]
            else:
                expected = self.ne[:, axis] * self.nb[:, axis]
        return np.asarray(ok)

    @cached_property
    def contiguous(self) -> Bools:
        """`ggml_is_contiguous`: no holes anywhere."""
        return self._contiguous_from(0)

    @cached_property
    def even(self) -> Bools:
        """`ggml_is_contiguous_1`: rows at one distance from each other, `nb[1]`, over all dimensions."""
        return self._contiguous_from(1)

    @cached_property
    def exact(self) -> Bools:
        """The strides that ggml gives every new tensor, also along dimensions of one element."""
        ok = self.dense
        expected = self.size * (self.ne[:, 0] // self.block)
        for axis in range(1, DIMS):
            ok = ok & (self.nb[:, axis] == expected)
            expected = expected * self.ne[:, axis]
        return np.asarray(ok)

    @cached_property
    def rows(self) -> Ints:
        """Number of rows, int64[n]."""
        return np.asarray(self.ne[:, 1:].prod(axis=1))


class Operand:
    """One operand (the result or a source) of all nodes of a group. Absent sources show the row 0: ask `present`."""

    def __init__(self, facts: Facts, index: Ints) -> None:
        self.facts = facts
        self.present: Bools = np.asarray(index >= 0)
        self.index: Ints = np.maximum(index, 0)

    def __getattr__(self, name: str) -> NDArray[Any]:
        value: NDArray[Any] = getattr(self.facts, name)[self.index]
        setattr(self, name, value)
        return value

    def dim(self, axis: int) -> Ints:
        """Elements along `axis`."""
        ne: Ints = self.ne[:, axis]
        return ne

    def stride(self, axis: int) -> Ints:
        """Bytes between neighbours along `axis`."""
        nb: Ints = self.nb[:, axis]
        return nb

    def has_shape(self, *dims: Ints | int) -> Bools:
        """Whether the four dimensions are these; dimensions left out are 1."""
        ok: Bools = np.ones(len(self.index), np.bool_)
        for axis in range(DIMS):
            ok = ok & (self.ne[:, axis] == (dims[axis] if axis < len(dims) else 1))
        return ok

    def same_shape(self, other: Operand) -> Bools:
        """Equal in all four dimensions."""
        return np.asarray((self.ne == other.ne).all(axis=1))

    def same_layout(self, other: Operand) -> Bools:
        """Equal type, dimensions and strides."""
        return np.asarray((self.type == other.type) & self.same_shape(other) & (self.nb == other.nb).all(axis=1))

    def is_type(self, *numbers: int) -> Bools:
        """Whether the type is one of these."""
        ok: Bools = np.zeros(len(self.index), np.bool_)
        for number in numbers:
            ok = ok | (self.type == number)
        return ok

    def is_matrix(self) -> Bools:
        """At most two dimensions."""
        return np.asarray((self.ne[:, 2] == 1) & (self.ne[:, 3] == 1))

    def is_vector(self) -> Bools:
        """At most one dimension."""
        return np.asarray(self.is_matrix() & (self.ne[:, 1] == 1))


class Group:
    """All nodes of one graph that run one op, and what is still allowed of them.

    A rule calls `require`; what fails is remembered with the first reason given for it.
    """

    def __init__(self, op: str, facts: Facts, index: Ints, sources: Ints) -> None:
        self.op = op
        self.types = facts.types
        self.facts = facts
        self.index = index
        self.dst = Operand(facts, index)
        self._sources = sources
        # ggml computes neither an empty result nor a node without the flag; the latter may then have sources that
        # this rank of a tensor split has nothing of.
        lacking = ((sources >= 0) & facts.empty[np.maximum(sources, 0)]).any(axis=1)
        self.excused: Bools = self.dst.empty | (((self.dst.flags & COMPUTE) == 0) & lacking)
        self.ok: Bools = np.ones(len(index), np.bool_)
        self.reasons: list[tuple[Bools, str]] = []

    def src(self, number: int) -> Operand:
        """Source `number` of every node."""
        return Operand(self.facts, self._sources[:, number])

    def param(self, number: int) -> Ints:
        """Integer parameter `number` of every node."""
        return np.asarray(self.facts.params[self.index, number].astype(np.int64))

    def real(self, number: int) -> NDArray[np.float32]:
        """Float parameter `number` of every node (any bit pattern: NaN included)."""
        return np.ascontiguousarray(self.facts.params[self.index, number]).view(np.float32)

    def require(self, condition: Bools, reason: str) -> None:
        """Demand something of every node that is not excused."""
        failed = self.ok & ~condition & ~self.excused
        if failed.any():
            self.reasons.append((failed, reason))
            self.ok &= ~failed

    def require_if(self, applies: Bools, condition: Bools, reason: str) -> None:
        """Demand something of the nodes to which it applies."""
        self.require(~applies | condition, reason)

    def fresh(self, number: int = 0) -> None:
        """The result is a new dense tensor, or lies in place of source `number` with its strides."""
        self.require(self.dst.exact | (self.dst.nb == self.src(number).nb).all(axis=1), "the result has holes")

    def reason(self, position: int) -> str:
        """Why the node at `position` of the group was refused; empty if it was not."""
        return next((reason for failed, reason in self.reasons if failed[position]), "")


def divides(divisor: Ints, number: Ints) -> Bools:
    """Whether `number` is a multiple of `divisor`; nothing but 0 is a multiple of 0."""
    return np.asarray(np.where(divisor == 0, number == 0, number % np.maximum(divisor, 1) == 0))


def repeats(small: Operand, big: Operand) -> Bools:
    """`ggml_can_repeat`: whether `small` tiles `big`."""
    tiles = divides(small.ne, big.ne).all(axis=1)
    return np.asarray(np.where(small.empty, big.empty, tiles))
