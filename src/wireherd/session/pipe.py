"""The mechanical half of a client's session: commands into a buffer and out, answers in and to where they belong.

No lock, no patience and no policy lives here: `client.py` decides when bytes leave, who waits and for how long.

Theory of operation. Small commands are copied behind each other into `out` and leave in one system call. A large
payload leaves straight from its owner's memory, gathered behind what was held back. Answers come in the order of the
commands; each finds the `Answer` that its command left behind, and data lands in the memory named there. Receiving
may stop anywhere, also within an answer, and go on later: whoever must read in order to write does just that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from wireherd.errors import PeerClosed, RemoteError, RemoteProtocolError, remote_error
from wireherd.protocol.dialect import opcode_name
from wireherd.protocol.messages_herd import ErrorNotice
from wireherd.protocol.table import Reply
from wireherd.session.options import SessionStats

if TYPE_CHECKING:
    from wireherd.protocol.connection import ClientConnection, Pending, Prepared
    from wireherd.protocol.fields import Message
    from wireherd.protocol.framing import Frame, FrameReader
    from wireherd.session.handshake import Opened
    from wireherd.transport import Stream

_clock: Final = time.perf_counter


class Answer:
    """Where an answer goes, and what became of it."""

    __slots__ = ("deferred", "done", "error", "into", "message")

    def __init__(self, into: memoryview | None, *, deferred: bool) -> None:
        #: memory that the data fills, exactly as long as the data
        self.into = into
        #: nobody waits for this one alone: a refusal is the whole session's
        self.deferred = deferred
        self.done = False
        self.message: Message | None = None
        self.error: RemoteError | None = None


class Pipe:
    """One client's stream after its handshake."""

    def __init__(self, opened: Opened, slice_s: float) -> None:
        """Take over a stream; one `receive` waits at most `slice_s`."""
        self.connection: ClientConnection = opened.connection
        self.stream: Stream = opened.frames.stream
        self.stats = SessionStats()
        #: commands that have not left yet
        self.out = bytearray()
        #: when something was last handed to the kernel
        self.last_flush = 0.0
        #: answers that were requested for later and are not here yet
        self.deferred = 0
        self._reader: FrameReader = opened.frames.reader
        self._current: tuple[Frame, Pending] | None = None
        self.stream.settimeout(slice_s)

    def append(self, message: Message, bulk: memoryview | None = None, answer: Answer | None = None) -> None:
        """Put a command into the buffer, with a copy of its data.

        Raises:
            LocalProtocolError: it is no command now, or does not fit; nothing has happened.
        """
        if bulk is None:
            self.out += self.connection.request(message, 0, answer)
        else:
            self.out += self.connection.request(message, len(bulk), answer)
            self.out += bulk
        self.stats.frames_sent += 1

    def repeat(self, prepared: Prepared) -> None:
        """Put a prepared command into the buffer.

        Raises:
            LocalProtocolError: it is no command now; nothing has happened.
        """
        out = self.out
        out += self.connection.repeat(prepared)
        out += prepared.body
        self.stats.frames_sent += 1

    def announce(self, message: Message, size: int) -> None:
        """Put a command into the buffer whose data goes out by `send` right behind it.

        Raises:
            LocalProtocolError: it is no command now, or does not fit; nothing has happened.
        """
        self.out += self.connection.request(message, size, None)
        self.stats.frames_sent += 1

    def send(self, bulk: memoryview | None = None) -> memoryview | None:
        """Hand the buffer, then `bulk`, to the kernel as far as it takes them; return what is left of `bulk`.

        Raises:
            PeerClosed: the connection broke.
        """
        out = self.out
        if bulk is None:
            sent = self.stream.send_nowait((out,)) if out else 0
        else:
            sent = self.stream.send_nowait((out, bulk) if out else (bulk,))
        self.last_flush = _clock()
        self.stats.bytes_sent += sent
        held = len(out)
        if sent < held:
            del out[:sent]
            return bulk
        out.clear()
        if bulk is None or sent - held == len(bulk):
            return None
        return bulk[sent - held :]

    def receive(self) -> None:
        """Receive once, waiting one slice at most, and deal with every answer that is complete.

        Raises:
            ReadTimeout: nothing came in this slice.
            PeerClosed: the stream ended or broke.
            RemoteProtocolError: what came makes no sense.
            RemoteError: the worker refused something that nobody waits for alone.
        """
        reader = self._reader
        count = self.stream.recv_into(reader.get_buffer())
        if not count:
            raise PeerClosed("it closed the connection")
        reader.received(count)
        self.stats.bytes_received += count
        self.settle()

    def settle(self) -> None:
        """Deal with every answer that is complete.

        Raises:
            RemoteProtocolError: what came makes no sense.
            RemoteError: the worker refused something that nobody waits for alone.
        """
        reader = self._reader
        while True:
            if self._current is None:
                frame = reader.next_frame()
                if frame is None:
                    return
                pending = self.connection.match(frame)
                self._current = frame, pending
                if pending.reply is not Reply.RECORD and not frame.status:
                    answer = pending.tag
                    if answer is None or answer.into is None:
                        reader.skip(frame.size)
                    else:
                        reader.into(answer.into)
            else:
                frame, pending = self._current
            if pending.reply is not Reply.RECORD and not frame.status:
                if reader.remaining:
                    return
                self._current = None
                self._finish(pending, None, None)
                continue
            view = reader.take(frame.size)
            if view is None:
                return
            self._current = None
            self._read(frame, pending, view)

    def _read(self, frame: Frame, pending: Pending, view: memoryview) -> None:
        message: Message | None = None
        error: RemoteError | None = None
        try:
            message = self.connection.response(pending, frame, view)
        except RemoteError as caught:
            error = caught
        if not pending.unasked:
            self._finish(pending, message, error)
        elif isinstance(message, ErrorNotice):
            if not message.status:
                raise RemoteProtocolError("it reported a failure without a status")
            raise remote_error(message.status, f"{opcode_name(message.opcode)}: {message.reason}")

    def _finish(self, pending: Pending, message: Message | None, error: RemoteError | None) -> None:
        answer = pending.tag
        if answer is None:
            if error is not None:
                raise error
            return
        answer.done = True
        answer.message = message
        answer.error = error
        if answer.deferred:
            self.deferred -= 1
            if error is not None:
                raise error
