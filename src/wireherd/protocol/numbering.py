"""Which number an operation, an activation or a type has at the other end.

Between our own ends the handshake carries the names. A stock peer cannot be asked, so its version decides; a name it
lacks is -1 in the lookup, and whoever places work must look there first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wireherd.errors import VersionMismatch
from wireherd.protocol.numbering_data import DIFFERENCES, GLU_OPS, OPS, TYPES, UNARY_OPS, Difference
from wireherd.protocol.version import Version

if TYPE_CHECKING:
    from collections.abc import Sequence

Lookup = np.ndarray[Any, np.dtype[np.int32]]


class Numbering(NamedTuple):
    """Names by number; empty where a number has no meaning."""

    ops: tuple[str, ...]
    unary_ops: tuple[str, ...]
    glu_ops: tuple[str, ...]
    types: tuple[str, ...]

    @classmethod
    def of(
        cls, ops: Sequence[str], unary_ops: Sequence[str], glu_ops: Sequence[str], types: Sequence[str]
    ) -> Numbering:
        """Build one from what a library says, without the sentences ggml gives for removed types."""
        return cls(
            *(tuple(name if _is_name(name) else "" for name in names) for names in (ops, unary_ops, glu_ops, types))
        )


class Translation(NamedTuple):
    """Lookup arrays: index with a number of the one side, get the other side's, or -1."""

    ops: Lookup
    unary_ops: Lookup
    glu_ops: Lookup
    types: Lookup

    @property
    def identical(self) -> bool:
        """Whether every number stays what it is, so that nothing need be translated."""
        return all(bool((lookup == np.arange(len(lookup))).all()) for lookup in self)


def translate(one: Numbering, other: Numbering) -> Translation:
    """Give the lookups from `one`'s numbers to `other`'s; -1 where `other` lacks the name or `one` the meaning."""
    return Translation(*(_lookup(a, b) for a, b in zip(one, other, strict=True)))


def stock_numbering(version: Version) -> Numbering:
    """Give the numbering of a stock peer.

    Raises:
        VersionMismatch: a patch this release has no row for: its numbers could mean anything.
    """
    try:
        return STOCK_NUMBERING[version]
    except KeyError:
        raise VersionMismatch(
            f"the numbering of operations in ggml RPC {version} is not known to this release: "
            f"use a peer of {', '.join(str(known) for known in STOCK_NUMBERING)}, or wireherd worker"
        ) from None


def _is_name(name: str) -> bool:
    return bool(name) and " " not in name and name != "DEPRECATED"


def _lookup(names: tuple[str, ...], others: tuple[str, ...]) -> Lookup:
    numbers: dict[str, int] = {}
    for number, name in enumerate(others):
        if _is_name(name):
            numbers.setdefault(name, number)
    return np.array([numbers.get(name, -1) for name in names], np.int32)


def _numbering(difference: Difference) -> Numbering:
    ops = OPS[: OPS.index(difference.ops_until)] if difference.ops_until else OPS
    return Numbering(
        tuple(name for name in ops if name not in difference.missing_ops),
        UNARY_OPS,
        GLU_OPS[: difference.glu_ops],
        TYPES[: difference.types],
    )


#: stock version, patch included → its numbering
STOCK_NUMBERING: dict[Version, Numbering] = {
    Version(*version): _numbering(difference) for version, difference in DIFFERENCES.items()
}
