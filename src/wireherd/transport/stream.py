"""What every transport offers: blocking streams of bytes, and listeners that accept them.

Theory of operation. The one that waits for data reads the stream itself, with `recv_into` straight into the memory
the data is for; the timeout set by `settimeout` bounds each such call. Whoever writes decides how: `sendall` blocks
until the kernel has everything; `send_nowait` takes what fits and never blocks, so that a writer whose peer is itself
blocked on writing can wait for both directions with `wait` and read in between.

Several buffers in one call are gathered by the system, never joined here. One thread may read while another writes;
two readers or two writers need a lock of their own. `shutdown` may come from any thread and wakes both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from wireherd.transport.address import Address

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Stream(ABC):
    """An ordered, reliable stream of bytes to one peer; `peer` names it for logs and sentences."""

    peer: str

    @abstractmethod
    def recv_into(self, view: memoryview) -> int:
        """Receive at least one byte into `view` and return how many came; 0 is the end of the stream.

        Raises:
            ReadTimeout: nothing came within the timeout.
            PeerClosed: the connection broke.
        """

    @abstractmethod
    def send_nowait(self, views: Sequence[Buffer]) -> int:
        """Hand over as much of `views`, in order, as fits without waiting; return the number of bytes, maybe 0.

        Raises:
            PeerClosed: the connection broke or was shut down.
        """

    @abstractmethod
    def wait(self, *, read: bool, write: bool, timeout_s: float | None) -> tuple[bool, bool]:
        """Wait until the stream can be read or written as asked; return which is possible, (False, False) in time.

        The end of the stream and a broken connection count as possible, so that the next call tells.
        """

    @abstractmethod
    def settimeout(self, seconds: float | None) -> None:
        """Bound each later `recv_into`, `send` and `sendall` (between two signs of progress); None waits for ever."""

    @abstractmethod
    def gettimeout(self) -> float | None:
        """The timeout set last; None at first."""

    @abstractmethod
    def shutdown(self) -> None:
        """End both directions and wake whoever waits on this stream; never raises, safe from any thread."""

    @abstractmethod
    def close(self) -> None:
        """Release the stream; nobody may use it after that. Closing twice is fine."""

    def unsent(self) -> int:
        """Bytes handed over that the peer's machine has not yet confirmed; 0 where this cannot be told."""
        return 0

    def fileno(self) -> int:
        """Descriptor of the stream, -1 if it has none."""
        return -1

    def send(self, view: Buffer) -> int:
        """Send at least one byte of `view` (none if it is empty) and return how many were taken.

        Raises:
            ReadTimeout: the peer took nothing within the timeout.
            PeerClosed: the connection broke.
        """
        return self._send_some((view,)) if len(view) else 0

    def sendall(self, views: Sequence[Buffer]) -> None:
        """Send all of `views`, in order, gathered by the system.

        Raises:
            ReadTimeout: the peer took nothing within the timeout.
            PeerClosed: the connection broke.
        """
        rest = [memoryview(view).cast("B") for view in views if len(view)]
        while rest:
            rest = advance(rest, self._send_some(rest))

    def _send_some(self, views: Sequence[Buffer]) -> int:
        while not (sent := self.send_nowait(views)):
            _, writable = self.wait(read=False, write=True, timeout_s=self.gettimeout())
            if not writable:
                raise self._timed_out("took nothing")
        return sent

    @abstractmethod
    def _timed_out(self, what: str) -> Exception:
        """The `ReadTimeout` to raise; `what` completes "the peer ... for N s"."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Listener(ABC):
    """Accepts streams; `address` is where it listens, with the real port if port 0 was asked for."""

    address: Address

    @abstractmethod
    def accept(self, timeout_s: float | None = None) -> Stream:
        """Wait for the next peer.

        Raises:
            ReadTimeout: nobody came in time.
            PeerClosed: the listener was closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop listening and wake whoever accepts."""

    def fileno(self) -> int:
        """Descriptor of the listener, -1 if it has none."""
        return -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def advance(views: Sequence[memoryview], sent: int) -> list[memoryview]:
    """What is left of `views` after `sent` bytes."""
    for index, view in enumerate(views):
        if sent < len(view):
            return [view[sent:], *views[index + 1 :]]
        sent -= len(view)
    return []
