"""What a session may be told, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wireherd.errors import UsageError
from wireherd.protocol.kept import MAX_GRAPHS, Policy

#: values of --graph-cache-policy
GRAPH_CACHE_POLICIES: Final = tuple(policy.name.lower() for policy in (Policy.LRU, Policy.RESET))


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client treats its workers.

    Attributes:
        connect_timeout_s: for a connection, and for the answer to HELLO.
        stock_timeout_s: how long a stock server, which cannot say that it lives, may be silent while waited on.
        liveness_s: how long one of our workers may leave PING unanswered while waited on.
        window_bytes: bytes of commands that may wait here for room in the kernel before posting blocks.
        retry_s: how long to try again while nobody answers at an address; 0 tries once.
        herd: whether to use our extension where a worker offers it.
        set_tensor: "async", or "sync": have every SET_TENSOR answered, and wait for it, as before protocol 2.0.
        graph_cache: graphs that each device of one of our workers is asked to keep; 0 keeps none.
        graph_cache_policy: what a full one does: "lru" forgets the graph used longest ago, "reset" all.
        located: pairs of a name and the address that it stands for, where a worker is not named by its address.
    """

    connect_timeout_s: float = 5.0
    stock_timeout_s: float = 300.0
    liveness_s: float = 0.75
    window_bytes: int = 64 << 20
    retry_s: float = 0.0
    herd: bool = True
    set_tensor: str = "async"
    located: tuple[tuple[str, str], ...] = ()
    graph_cache: int = 1024
    graph_cache_policy: str = "lru"

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            UsageError: a value out of range or unknown.
        """
        if not 0 <= self.graph_cache <= MAX_GRAPHS:
            raise UsageError(f"--graph-cache must be between 0 and {MAX_GRAPHS}, not {self.graph_cache}")
        if self.graph_cache_policy not in GRAPH_CACHE_POLICIES:
            raise UsageError(
                f"--graph-cache-policy must be one of {', '.join(GRAPH_CACHE_POLICIES)}, not {self.graph_cache_policy}"
            )


@dataclass(slots=True)
class SessionStats:
    """What a session did so far.

    Attributes:
        bytes_sent: handed to the kernel, headers included.
        bytes_received: taken from it.
        frames_sent: commands.
        round_trips: waits for an answer.
        wait_s: seconds spent in them.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_sent: int = 0
    round_trips: int = 0
    wait_s: float = 0.0
