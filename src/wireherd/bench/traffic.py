"""What went over the wire while cases were measured: differences of what the client counts for each worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: names and widths of the table's columns, everything a token
COLUMNS: Final = (
    ("workers", 7),
    ("protocol", -8),
    ("trips", 6),
    ("up B", 8),
    ("down B", 8),
    ("sent", 6),
    ("rerun", 6),
    ("hits", 6),
)
_SHORT: Final = 100
#: what the client counts for each worker, as `Traffic` names it
_COUNTS: Final = (
    "round_trips",
    "bytes_sent",
    "bytes_received",
    "graphs_sent",
    "graphs_rerun",
    "graph_cache_hits",
    "graph_cache_resets",
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums over all workers and repetitions.

    Attributes:
        workers: how many took part.
        protocol: what they speak, each kind once.
        round_trips: waits for an answer.
        bytes_sent: from the client, headers included; `bytes_received` by it. What workers send each other is in none.
        graphs_sent: graphs that went out whole; `graphs_rerun` that a worker was told to run again.
        graph_cache_hits: graphs run again out of a cache, by uid or by content.
        graph_cache_resets: times a full cache was emptied.
        known: whether anybody counted: another program in our place does not.
    """

    workers: int = 0
    protocol: str = ""
    round_trips: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    graphs_sent: int = 0
    graphs_rerun: int = 0
    graph_cache_hits: int = 0
    graph_cache_resets: int = 0
    known: bool = True

    @classmethod
    def of(cls, workers: Sequence[Mapping[str, Any]]) -> Traffic:
        """All so far, from what `LlmSession.workers` tells."""
        kinds = ",".join(dict.fromkeys(str(each["protocol"]) for each in workers))
        return cls(len(workers), kinds, *(sum(each.get(name, 0) for each in workers) for name in _COUNTS))

    def __sub__(self, before: Traffic) -> Traffic:
        """What came since."""
        return Traffic(self.workers, self.protocol, *(getattr(self, name) - getattr(before, name) for name in _COUNTS))

    def __add__(self, other: Traffic) -> Traffic:
        """Both; the workers are the same."""
        named = self if self.workers else other
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Traffic(named.workers, named.protocol, known=self.known and other.known, **counts)

    def record(self, tokens: int) -> dict[str, object]:
        """Own keys of a row that measured so many tokens; None where nobody counted."""
        found: dict[str, object] = {
            "workers": self.workers,
            "protocol": self.protocol,
            "round_trips_per_token": round(self.round_trips / tokens, 4),
            "bytes_up_per_token": round(self.bytes_sent / tokens, 1),
            "bytes_down_per_token": round(self.bytes_received / tokens, 1),
            "graphs_sent_per_token": round(self.graphs_sent / tokens, 4),
            "graphs_rerun_per_token": round(self.graphs_rerun / tokens, 4),
            "graph_cache_hits_per_token": round(self.graph_cache_hits / tokens, 4),
            "graph_cache_resets": self.graph_cache_resets,
        }
        return found if self.known else dict.fromkeys(found) | {"workers": self.workers}

    def cells(self, tokens: int) -> list[str]:
        """The same for the table, as in `COLUMNS`."""
        counted = (
            self.round_trips,
            self.bytes_sent,
            self.bytes_received,
            self.graphs_sent,
            self.graphs_rerun,
            self.graph_cache_hits,
        )
        if not self.known:
            return [str(self.workers), *[""] * (1 + len(counted))]
        return [str(self.workers), self.protocol, *(_short(count / tokens) for count in counted)]


def _short(value: float) -> str:
    return f"{value:.2f}" if value < _SHORT else f"{value:.0f}"


NO_TRAFFIC: Final = Traffic()
