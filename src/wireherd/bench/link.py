"""An emulated link: what `--link` says, and the relay process that stands in front of workers and does it.

Two doors belong to each worker: one for the client, one for the other workers. The client's is given to the client
instead of the worker's address; the peers' is what the worker tells the others (`wireherd worker --advertise`). The
relay is a process of its own, so that it does not share an interpreter with the client whose time is taken.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Final

from wireherd.errors import UsageError, WireherdError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

#: a link slower or more distant than these is a slip of the hand (the moon is 1,300 ms away)
_MOST_MS: Final = 10_000.0
_MOST_MBIT: Final = 1_000_000.0
#: below this our own sign of life would not fit in beside the data
_LEAST_MBIT: Final = 0.1
_HALF: Final = "half"


class LinkError(WireherdError):
    """The relay process did not start."""


@dataclass(frozen=True, slots=True)
class LinkShape:
    """How a link treats what is sent over it.

    Attributes:
        delay_ms: one way.
        rate_mbit: megabits of payload a second, each way of each machine; 0 is without limit.
        jitter_ms: added to the delay, between none and all of it, evenly spread; order is kept.
        half: all machines and both directions share one medium, as on WiFi.
    """

    delay_ms: float
    rate_mbit: float = 0.0
    jitter_ms: float = 0.0
    half: bool = False

    @classmethod
    def parse(cls, text: str) -> LinkShape:
        """Parse DELAY_MS[,RATE_MBIT[,JITTER_MS[,half]]].

        Raises:
            UsageError: anything else.
        """
        words = [word.strip() for word in text.split(",")]
        half = len(words) == 4 and words[3] == _HALF
        try:
            numbers = [float(word) for word in (words[:3] if half else words)]
        except ValueError:
            numbers = []
        if not 1 <= len(numbers) <= 3 or not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise UsageError(f"--link {text!r} is no link: give DELAY_MS[,RATE_MBIT[,JITTER_MS[,half]]], like 0.5,1000")
        delay, rate, jitter = (*numbers, 0.0, 0.0)[:3]
        shape = cls(delay, rate, jitter, half)
        if shape.delay_ms > _MOST_MS or shape.jitter_ms > _MOST_MS:
            raise UsageError(f"--link {text!r}: delay and jitter may be {_MOST_MS:g} ms at most")
        if shape.rate_mbit and not _LEAST_MBIT <= shape.rate_mbit <= _MOST_MBIT:
            raise UsageError(f"--link {text!r}: the rate must be 0 or {_LEAST_MBIT:g} to {_MOST_MBIT:.0f} Mbit/s")
        if half and not shape.rate_mbit:
            raise UsageError(f"--link {text!r}: without a rate there is nothing for the two directions to share")
        return shape

    def __str__(self) -> str:
        parts = [f"{self.delay_ms:g} ms"]
        if self.rate_mbit:
            parts.append(f"{self.rate_mbit:g} Mbit/s")
        if self.jitter_ms:
            parts.append(f"{self.jitter_ms:g} ms jitter")
        return ", ".join(parts + ["half duplex"] * self.half)


class Link:
    """A running relay in front of `count` workers. Close it, or use it as a context manager.

    Attributes:
        shape: what it does.
        client_doors: host:port where the client reaches each worker.
        peer_doors: host:port where the other workers reach it.
    """

    def __init__(self, shape: LinkShape, count: int) -> None:
        """Start the relay; its doors lead nowhere until `aim`.

        Raises:
            LinkError: it did not start.
        """
        self.shape = shape
        self._process = subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", "wireherd.bench.relay", json.dumps(asdict(shape) | {"count": count})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            line = self._pipe(self._process.stdout).readline()
            if not line:
                raise LinkError(f"the emulated link ended with exit code {self._process.wait()} before it began")
            ports = json.loads(line)
        except BaseException:
            self.close()
            raise
        self.client_doors: Sequence[str] = tuple(f"127.0.0.1:{port}" for port in ports[:count])
        self.peer_doors: Sequence[str] = tuple(f"127.0.0.1:{port}" for port in ports[count:])

    def aim(self, number: int, address: str) -> None:
        """Say where a worker listens: host:port or unix:PATH.

        Raises:
            LinkError: the relay is gone.
        """
        try:
            pipe = self._pipe(self._process.stdin)
            pipe.write(json.dumps([number, address]).encode() + b"\n")
            pipe.flush()
            if self._pipe(self._process.stdout).readline() != b"ok\n":
                raise LinkError("the emulated link ended")
        except OSError as error:
            raise LinkError("the emulated link ended") from error

    @property
    def alive(self) -> bool:
        """Whether the relay runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process number of the relay."""
        return self._process.pid

    def close(self) -> None:
        """End the relay and with it every connection through it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what it was still to be told, it no longer hears
                    pipe.close()
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        if pipe is None:
            raise LinkError("the emulated link has no pipe to it")
        return pipe

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
