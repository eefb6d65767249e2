"""The blocking glue of a stream and a frame reader: wait for a header, for payload, for room to write.

Used where one side simply takes turns (the server, the handshake, the control connection). The client's stream has its
own loop in `client.py`, because it must read while it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wireherd.errors import PeerClosed, ReadTimeout
from wireherd.protocol.framing import FrameReader
from wireherd.transport.stream import advance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.protocol.framing import Frame, HeaderFormat
    from wireherd.transport.stream import Buffer, Stream

#: one wait in the kernel lasts at most this long, so that signals and deadlines are seen
SLICE_S: Final = 0.5


class FrameStream:
    """Frames from and to one peer; for one thread at a time.

    Attributes:
        idle_s: how long `frame` waits for a frame to begin; None: for ever.
        stall_s: how long a frame that has begun, or a write, may stand still.
    """

    def __init__(
        self,
        stream: Stream,
        header: HeaderFormat,
        *,
        idle_s: float | None,
        stall_s: float,
        slice_s: float = SLICE_S,
    ) -> None:
        self.stream = stream
        self.reader = FrameReader(header)
        self.idle_s = idle_s
        self.stall_s = stall_s
        self._slice_s = slice_s
        self._inside = False  # between the first byte of a frame and its last
        stream.settimeout(slice_s)

    def ready(self, timeout_s: float) -> bool:
        """Wait until there is something to read, at most `timeout_s`; the end of the stream counts."""
        if len(self.reader.buffered):
            return True
        return self.stream.wait(read=True, write=False, timeout_s=timeout_s)[0]

    def frame(self) -> Frame | None:
        """Wait for the next header; None if the peer left at a frame boundary.

        Raises:
            ReadTimeout: nothing began within `idle_s`, or the header did not complete within `stall_s`.
            PeerClosed: the peer left within a header, or the connection broke.
        """
        reader = self.reader
        self._inside = False
        while (found := reader.next_frame()) is None:
            if not self._receive():
                if len(reader.buffered):
                    raise PeerClosed("the peer left in the middle of a frame")
                return None
            self._inside = bool(len(reader.buffered))
        self._inside = True
        return found

    def take(self, size: int) -> memoryview:
        """Wait for `size` payload bytes; the view is valid until the next call.

        Raises:
            ReadTimeout: they stood still for `stall_s`.
            PeerClosed: the peer left before they were complete.
        """
        while (view := self.reader.take(size)) is None:
            self._receive_payload()
        return view

    def into(self, view: memoryview) -> None:
        """Wait until payload bytes have filled `view`, received straight into it.

        Raises:
            ReadTimeout: they stood still for `stall_s`.
            PeerClosed: the peer left before they were complete.
        """
        self.reader.into(view)
        while self.reader.remaining:
            self._receive_payload()

    def skip(self, size: int) -> None:
        """Wait until `size` payload bytes have come, and forget them.

        Raises:
            ReadTimeout: they stood still for `stall_s`.
            PeerClosed: the peer left before they were complete.
        """
        self.reader.skip(size)
        while self.reader.remaining:
            self._receive_payload()

    def send(self, views: Sequence[Buffer]) -> None:
        """Write all of `views`.

        Raises:
            ReadTimeout: the peer took nothing for `stall_s`.
            PeerClosed: the connection broke.
        """
        sent = self.stream.send_nowait(views)
        if sent == sum(map(len, views)):
            return
        rest = advance([memoryview(view).cast("B") for view in views], sent)
        quiet_s = 0.0
        while rest:
            if self.stream.wait(read=False, write=True, timeout_s=self._slice_s)[1]:
                rest = advance(rest, self.stream.send_nowait(rest))
                quiet_s = 0.0
                continue
            quiet_s += self._slice_s
            if quiet_s >= self.stall_s:
                raise ReadTimeout(f"the peer took nothing for {self.stall_s:g} s")

    def discard(self, limit_s: float) -> None:
        """Read and forget everything until the peer leaves, at most for `limit_s` of silence."""
        scratch = memoryview(bytearray(1 << 16))
        quiet_s = 0.0
        while quiet_s < limit_s:
            try:
                if not self.stream.recv_into(scratch):
                    return
                quiet_s = 0.0
            except ReadTimeout:
                quiet_s += self._slice_s
            except PeerClosed:
                return

    def _receive_payload(self) -> None:
        if not self._receive():
            raise PeerClosed("the peer left in the middle of a frame")

    def _receive(self) -> int:
        """Receive once; the number of bytes, 0 at the end of the stream."""
        reader = self.reader
        quiet_s = 0.0
        while True:
            try:
                count = self.stream.recv_into(reader.get_buffer())
            except ReadTimeout:
                quiet_s += self._slice_s
                limit_s = self.stall_s if self._inside else self.idle_s
                if limit_s is not None and quiet_s >= limit_s:
                    where = "in the middle of a frame" if self._inside else "at all"
                    raise ReadTimeout(f"the peer sent nothing {where} for {limit_s:g} s") from None
                continue
            reader.received(count)
            return count
