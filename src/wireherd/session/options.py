"""What a session may be told, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    connect_timeout_s: float = 5.0
    stock_timeout_s: float = 300.0
    liveness_s: float = 0.75
    window_bytes: int = 64 << 20
    retry_s: float = 0.0
    herd: bool = True
    set_tensor: str = "async"


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
