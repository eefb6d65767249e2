"""The supervisor's door: what happens to a connection until a session owns it.

Theory of operation. Bytes are read exactly to the end of a frame, never beyond, so that the socket can be handed to
another process at any frame boundary. A connection says HELLO, answered here. Then each command decides:

- needs no state (device count, sizes, memory): read here, answered by a probe, in order;
- HERD_HELLO: handed on with that frame, to a fresh session or, for a control connection or a link from another
  worker, to the session it names;
- ALLOC_BUFFER or COMM_INIT, the only commands that can begin to build state: handed to a fresh session, for good;
- anything else has nothing to act on yet: the connection is closed, and no process is spent on it.

A frame that has begun must be complete in time. A connection that waits between frames may wait as long as it likes
(stock clients keep spare ones open), until there are too many of them: then the one idle longest has to go.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from wireherd.errors import (
    FrameTooLarge,
    OutOfOrder,
    RemoteError,
    RemoteProtocolError,
    VersionMismatch,
    WireherdError,
)
from wireherd.obs.log import get_logger
from wireherd.protocol.connection import ServerConnection
from wireherd.protocol.dialect import opcode_name
from wireherd.protocol.framing import STOCK_REQUEST, Frame
from wireherd.protocol.messages_herd import MAGIC, HerdHelloRequest, Purpose
from wireherd.protocol.negotiate import foreign_hello, way_out
from wireherd.protocol.table import Opcode, State
from wireherd.protocol.version import NEWEST, SUPPORTED
from wireherd.worker.listen import spell_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wireherd.worker.settings import WorkerSettings

log = get_logger(__name__)

#: commands that a session can begin with; every other stateful one needs a buffer that cannot exist yet
_BEGINNERS: Final = frozenset({Opcode.ALLOC_BUFFER, Opcode.COMM_INIT, Opcode.HERD_HELLO})
#: a request beyond this is not read here, whatever the table allows
_MAX_HERE: Final = 1 << 16
#: sockets that Windows can wait for at once; more would end the event loop
_WINDOWS_FILES: Final = 512
#: files that are neither connections nor channels to sessions
_OTHER_FILES: Final = 64
#: our client waits 30 s for a session, so that it hears from here first
_SESSION_WAIT_S: Final = 25.0


class _LeftError(WireherdError):
    """The client left at a frame boundary: nothing to say."""


class _Visitor:
    """One connection at the door."""

    def __init__(self, sock: socket.socket, peer: str, connection: ServerConnection) -> None:
        self.sock = sock
        self.peer = peer
        self.connection = connection
        self.owned = True
        self.late = False
        self.dropped = False
        #: whether it said anything after HELLO
        self.asked = False

    async def read(self, size: int, timeout_s: float, *, idle: bool = False) -> bytes:
        """Exactly `size` bytes in time; with `idle` the time runs from the first byte, and the stream may end before.

        Raises:
            RemoteProtocolError: the client was too slow, or left in the middle.
        """
        loop = asyncio.get_running_loop()
        timer = None if idle else loop.call_later(timeout_s, self.expire)
        data = b""
        try:
            while len(data) < size:
                piece = await loop.sock_recv(self.sock, size - len(data))
                if not piece:
                    raise self._end(between=idle and not data)
                data = data + piece if data else piece
                if timer is None and len(data) < size:
                    timer = loop.call_later(timeout_s, self.expire)
        finally:
            if timer is not None:
                timer.cancel()
        return data

    def _end(self, *, between: bool) -> WireherdError:
        if self.late:
            return RemoteProtocolError("it did not finish its frame in time")
        if self.dropped:
            return RemoteProtocolError("too many idle connections: this one was idle longest")
        return _LeftError() if between else RemoteProtocolError("it left in the middle of a frame")

    def expire(self) -> None:
        """Wake the reader with an end of stream: it was too slow."""
        self.late = True
        self._shut()

    def drop(self) -> None:
        """Wake the reader with an end of stream: its place is needed."""
        self.dropped = True
        self._shut()

    def _shut(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("%s was gone already", self.peer)


def _room(sessions: int) -> int:
    """How many connections may be open so that there are still files left to start sessions with."""
    if sys.platform == "win32":
        files = _WINDOWS_FILES
    else:
        import resource  # noqa: PLC0415 (POSIX only)

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return sys.maxsize
    return max(files // 4, files - 2 * sessions - _OTHER_FILES)


class Door:
    """Accepts connections and leads each to where it belongs."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        ask: Callable[[int, bytes], Awaitable[bytes]],
        begin: Callable[[socket.socket, str, bytes], Awaitable[None]],
        join: Callable[[socket.socket, str, bytes, bytes, Purpose], None],
    ) -> None:
        """Set what the door does with connections.

        Args:
            settings: limits and the protocol version.
            ask: answers a stateless command: opcode, payload → the framed reply.
            begin: gives a socket, its peer and the bytes read since HELLO to a fresh session.
            join: gives them to the session with that name, for the purpose that is said last; raises
                `RemoteProtocolError` if there is none.
        """
        self._settings = settings
        self._ask = ask
        self._begin = begin
        self._join = join
        self._visitors: OrderedDict[_Visitor, asyncio.Task[None]] = OrderedDict()
        #: connections that wait for a session: they have their turn, and are not dropped for being idle
        self._in_line = 0
        self._most = min(settings.max_connections, _room(settings.max_sessions))

    async def accept(self, listener: socket.socket) -> None:
        """Accept for ever; ends by cancellation."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                self._drop_oldest(1)
                await asyncio.sleep(0.05)
                continue
            self.admit(sock, spell_address(address))
            # A connection that is there already is taken without a pause, so a stream of them would be all that runs.
            await asyncio.sleep(0)

    def admit(self, sock: socket.socket, peer: str) -> None:
        """Take a connection in, wherever it came from; it belongs to the door from now on."""
        sock.setblocking(False)
        connection = ServerConnection(self._settings.protocol, herd=not self._settings.plain)
        visitor = _Visitor(sock, peer, connection)
        self._visitors[visitor] = asyncio.get_running_loop().create_task(self._receive(visitor))
        self._drop_oldest(len(self._visitors) + self._in_line - self._most)

    def _drop_oldest(self, count: int) -> None:
        for visitor in list(self._visitors)[: max(0, count)]:
            visitor.drop()

    async def close(self) -> None:
        """Close every connection that has no session."""
        inside = dict(self._visitors)
        for task in inside.values():
            task.cancel()
        await asyncio.gather(*inside.values(), return_exceptions=True)
        for visitor in inside:
            if visitor.owned:  # a task that was cancelled before its first step closed nothing
                visitor.sock.close()

    async def _receive(self, visitor: _Visitor) -> None:
        log.debug("%s connected", visitor.peer)
        try:
            if visitor.sock.family != getattr(socket, "AF_UNIX", None):
                visitor.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._lead(visitor)
        except _LeftError:
            self._left(visitor)
        except (WireherdError, OSError) as error:
            log.info("%s refused: %s", visitor.peer, error)
        finally:
            self._visitors.pop(visitor, None)
            if visitor.owned:
                visitor.sock.close()

    def _left(self, visitor: _Visitor) -> None:
        """A stock client of another version leaves when it hears ours; only here can its user learn what to do."""
        if visitor.connection.state is State.NEW or visitor.asked:
            log.debug("%s left", visitor.peer)
            return
        version = self._settings.protocol
        log.info(
            "%s left when it heard that this worker answers as ggml RPC %s: if it is a stock client of another "
            "version, %s", visitor.peer, version, way_out(SUPPORTED[2] if version == NEWEST else NEWEST, version),
        )  # fmt: skip

    async def _hello(self, visitor: _Visitor) -> None:
        timeout_s = self._settings.handshake_timeout_s
        frame = STOCK_REQUEST.unpack(await visitor.read(STOCK_REQUEST.size, timeout_s), 0)
        if frame.opcode != Opcode.HELLO:
            raise OutOfOrder(f"its first command is {opcode_name(frame.opcode)}, not HELLO")
        foreign = foreign_hello(frame.size, self._settings.protocol)
        if foreign:
            raise VersionMismatch(foreign)
        visitor.connection.check(frame)
        visitor.connection.request(frame, await visitor.read(frame.size, timeout_s))
        reply = visitor.connection.reply(frame, visitor.connection.hello_response())
        await asyncio.get_running_loop().sock_sendall(visitor.sock, reply)

    async def _lead(self, visitor: _Visitor) -> None:
        await self._hello(visitor)
        timeout_s = self._settings.handshake_timeout_s
        while True:
            if visitor in self._visitors:
                self._visitors.move_to_end(visitor)
            frame = STOCK_REQUEST.unpack(await visitor.read(STOCK_REQUEST.size, timeout_s, idle=True), 0)
            visitor.asked = True
            stateless = self._expect(visitor, frame)
            payload = await visitor.read(frame.size, timeout_s) if frame.size else b""
            if not stateless:
                await self._hand_over(visitor, frame, payload)
                return
            try:
                reply = await self._ask(frame.opcode, payload)
            except RemoteError as error:
                raise RemoteProtocolError(f"{opcode_name(frame.opcode)}: {error}") from error
            await asyncio.get_running_loop().sock_sendall(visitor.sock, reply)

    @staticmethod
    def _expect(visitor: _Visitor, frame: Frame) -> bool:
        """Whether a probe can answer the command.

        Raises:
            RemoteProtocolError: unknown, out of place or of a wrong size.
        """
        command = visitor.connection.check(frame).command
        if command.opcode not in _BEGINNERS and not command.stateless:
            raise OutOfOrder(f"{command.name} before any ALLOC_BUFFER")
        if frame.size > _MAX_HERE:
            raise FrameTooLarge(f"{command.name} of {frame.size} bytes, at most {_MAX_HERE} may come first")
        return command.stateless

    async def _hand_over(self, visitor: _Visitor, frame: Frame, payload: bytes) -> None:
        read = STOCK_REQUEST.pack(*frame) + payload
        if frame.opcode == Opcode.HERD_HELLO:
            request = visitor.connection.dialect.decode_request(frame.opcode, payload)
            if not isinstance(request, HerdHelloRequest) or request.magic != MAGIC:
                raise RemoteProtocolError("its HERD_HELLO is none")
            if request.purpose in {Purpose.CONTROL, Purpose.PEER}:
                self._join(visitor.sock, visitor.peer, read, request.session, Purpose(request.purpose))
                visitor.owned = False
                return
            if request.purpose != Purpose.STREAM:
                raise RemoteProtocolError(f"HERD_HELLO with purpose {request.purpose} is not served here")
        self._visitors.pop(visitor, None)
        if self._in_line >= max(1, self._most // 2):
            raise RemoteProtocolError("too many clients wait for a session")
        self._in_line += 1
        try:
            await asyncio.wait_for(self._begin(visitor.sock, visitor.peer, read), _SESSION_WAIT_S)
        except asyncio.TimeoutError as error:
            raise RemoteProtocolError("no session became free in time") from error
        finally:
            self._in_line -= 1
        visitor.owned = False
