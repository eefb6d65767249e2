"""Links between members of a group: opening and taking them, and the frames they carry.

A link carries GROUP_PART frames both ways, each a head of 32 bytes and the data. The plan says what the next head must
be, so it is compared as a whole, and only one that differs is taken apart, to say what is wrong with it. The other
thing that may come is an ERROR frame: the member says why it cannot go on, and maybe that a third one is to blame.
"""

from __future__ import annotations

import hmac
import struct
from typing import TYPE_CHECKING, Final

from wireherd.errors import (
    OutOfOrder,
    PeerClosed,
    PeerLost,
    RemoteProtocolError,
    TransportError,
    WorkerRefused,
)
from wireherd.protocol.dialect import dialect_for, opcode_name
from wireherd.protocol.framing import HERD
from wireherd.protocol.messages_herd import FEATURES, ErrorNotice, HerdHelloRequest, HerdHelloResponse, Purpose
from wireherd.protocol.messages_peer import GroupLinkRequest, GroupLinkResponse
from wireherd.protocol.negotiate import agree_features
from wireherd.protocol.table import Opcode
from wireherd.protocol.version import NEWEST
from wireherd.session.frames import FrameStream
from wireherd.session.handshake import open_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.protocol.connection import ServerConnection
    from wireherd.protocol.fields import Message
    from wireherd.protocol.framing import Frame
    from wireherd.session.handshake import Opened
    from wireherd.transport import Address, Stream
    from wireherd.transport.stream import Buffer

#: header and GROUP_PART's fields in one; the tests hold it against the message table
HEAD: Final = struct.Struct("<BBHIQ" + "IHHQ")
HEAD_SIZE: Final = HEAD.size
_FIELDS_SIZE: Final = HEAD.size - HERD.size
_PART: Final = int(Opcode.GROUP_PART)
_MASK: Final = (1 << 32) - 1
#: ggml's number of F32, the only type that travels so far
F32: Final = 0
#: longest ERROR frame that is read
_MAX_NOTICE: Final = 8192
#: how long the rest of an ERROR frame may take
_NOTICE_S: Final = 0.2


class Link:
    """One standing link. Only the thread that reduces reads and writes it; `shutdown` may come from any thread.

    Attributes:
        rank: the other end.
        name: its address, for sentences.
        stream: what carries the frames.
        inside: whether something of a frame was read and its end was not.
        cut: whether something of a frame was sent and its end was not.
    """

    __slots__ = ("_early", "_received", "_sent", "cut", "inside", "name", "rank", "stream")

    def __init__(
        self, rank: int, name: str, stream: Stream, early: bytes = b"", *, sent: int = 0, received: int = 0
    ) -> None:
        """Take a stream over; `early` came with the handshake, `sent` and `received` number the frames so far."""
        self.rank = rank
        self.name = name
        self.stream = stream
        self.inside = False
        self.cut = False
        self._early = early
        self._sent = sent
        self._received = received

    def head(self, sequence: int, step: int, size: int) -> bytes:
        """The head of the next part to send."""
        self._sent = number = (self._sent + 1) & _MASK
        return HEAD.pack(_PART, 0, 0, number, _FIELDS_SIZE + size, sequence, step, F32, size)

    def expected(self, sequence: int, step: int, size: int) -> bytes:
        """The head that the next part to receive must have."""
        self._received = number = (self._received + 1) & _MASK
        return HEAD.pack(_PART, 0, 0, number, _FIELDS_SIZE + size, sequence, step, F32, size)

    def receive(self, view: memoryview) -> int:
        """Receive what is there into `view`, waiting for the first byte if nothing is.

        Raises:
            ReadTimeout: nothing came within the stream's timeout.
            PeerLost: the other end closed, or the connection broke.
        """
        if self._early:
            count = min(len(view), len(self._early))
            view[:count] = self._early[:count]
            self._early = self._early[count:]
            return count
        count = self.stream.recv_into(view)
        if not count:
            raise self.lost("closed its link")
        return count

    @property
    def early(self) -> bool:
        """Whether bytes wait here that no descriptor tells of."""
        return bool(self._early)

    def lost(self, why: str) -> PeerLost:
        """The failure that blames the other end."""
        return PeerLost.of(self.rank, self.name, why)

    def explain(self, head: Buffer, expected: bytes) -> PeerLost:
        """Why a head that is not the expected one is wrong; an ERROR frame says so itself."""
        opcode, flags, status, number, length, sequence, step, kind, size = HEAD.unpack_from(head)
        wanted = HEAD.unpack(expected)
        if opcode == Opcode.ERROR and not flags and not status:
            return self._notice(bytes(head), length)
        if opcode != _PART or flags or status:
            return self.lost(f"sent {opcode_name(opcode)} where part of a tensor is due")
        told = {
            "reduction": (sequence, wanted[5]),
            "step": (step, wanted[6]),
            "type": (kind, wanted[7]),
            "size": (size, wanted[8]),
            "frame": (number, wanted[3]),
            "length": (length, wanted[4]),
        }
        what, (got, due) = next((name, pair) for name, pair in told.items() if pair[0] != pair[1])
        return self.lost(f"sent a part with {what} {got} where {due} is due")

    def _notice(self, head: bytes, length: int) -> PeerLost:
        """Read the rest of an ERROR frame whose first bytes are there already."""
        rest = HERD.size + length - len(head)
        if not 0 <= rest <= _MAX_NOTICE:
            return self.lost("sent an ERROR frame of a senseless size")
        data = bytearray(rest)
        view = memoryview(data)
        try:
            self.stream.settimeout(_NOTICE_S)
            while view:
                view = view[self.receive(view) :]
            notice = dialect_for(NEWEST, herd=True).decode_response(Opcode.ERROR, (head + data)[HERD.size :])
        except (TransportError, PeerLost, RemoteProtocolError):
            return self.lost("failed and could not say why")
        blamed = PeerLost(notice.reason) if isinstance(notice, ErrorNotice) else None
        if blamed is not None and blamed.rank is not None:
            return blamed
        return self.lost(f"failed: {notice.reason if isinstance(notice, ErrorNotice) else 'no reason'}")

    def verdict(self) -> PeerLost | None:
        """What the other end has to say about a failure, without waiting; None if it says nothing (yet)."""
        if self.inside or not self.stream.wait(read=True, write=False, timeout_s=0)[0]:
            return None
        head = bytearray(HEAD_SIZE)
        view = memoryview(head)
        try:
            self.stream.settimeout(_NOTICE_S)
            while view:
                view = view[self.receive(view) :]
        except PeerLost as error:
            return error
        except TransportError:
            return None
        return self._notice(bytes(head), HEAD.unpack(head)[4]) if head[0] == Opcode.ERROR else None

    def complain(self, status: int, reason: str) -> None:
        """Tell the other end why no more parts come; where that cannot be done at once, the link's end tells."""
        notice = ErrorNotice(int(Opcode.GROUP_REDUCE), status, 0, reason)
        body = dialect_for(NEWEST, herd=True).encode(notice)
        frame = HERD.pack(Opcode.ERROR, 0, 0, 0, len(body)) + body
        try:
            if not self.cut and self.stream.send_nowait([frame]) == len(frame):
                return
        except TransportError:
            pass
        self.shutdown()

    def shutdown(self) -> None:
        """End the link and wake whoever waits on it."""
        self.stream.shutdown()

    def close(self) -> None:
        """Close the link."""
        self.stream.close()


def dial(address: Address, session: bytes, group: bytes, rank: int, target: int, timeout_s: float) -> Link:
    """Open the link from `rank` to rank `target` of a group, whose worker is at `address`.

    Raises:
        WorkerLost, WorkerRefused: no link could be had there.
        RemoteProtocolError: what is there does not keep to the protocol.
    """
    opened = open_peer(address, session, timeout_s=timeout_s)
    stream = opened.frames.stream
    try:
        answer = _ask(opened, GroupLinkRequest(group, rank))
        if answer.rank != target:
            raise WorkerRefused(str(address), f"is rank {answer.rank} of the group, not {target}")
        early = bytes(opened.frames.reader.buffered)
        return Link(target, str(address), stream, early, sent=opened.connection.sequence)
    except BaseException:
        stream.close()
        raise


def _ask(opened: Opened, request: GroupLinkRequest) -> GroupLinkResponse:
    connection, frames = opened.connection, opened.frames
    frames.send([connection.request(request)])
    frame = frames.frame()
    if frame is None:
        raise WorkerRefused(frames.stream.peer, "closed instead of answering GROUP_LINK")
    answer = connection.response(connection.match(frame), frame, frames.take(frame.size))
    if not isinstance(answer, GroupLinkResponse):
        raise OutOfOrder(f"{type(answer).__name__} does not answer GROUP_LINK")
    return answer


def take(
    stream: Stream,
    connection: ServerConnection,
    received: bytes,
    session: bytes,
    expect: Callable[[bytes, int], int],
    *,
    timeout_s: float,
) -> tuple[bytes, Link]:
    """Be the other end of `dial`: greet, and hear which group the link is for.

    Args:
        stream: from the member that dialled; the caller closes it if this fails.
        connection: in the state after HELLO.
        received: bytes that were read already, from HERD_HELLO on.
        session: name of the session the stream was handed to.
        expect: gives the own rank in the group of that name, if it waits for a link from that rank; raises
            `RemoteProtocolError` otherwise.
        timeout_s: for each frame.

    Returns:
        Name of the group, and the link.

    Raises:
        RemoteProtocolError: it is not expected, or breaks the protocol.
        TransportError: it left, or is too slow.
    """
    frames = FrameStream(stream, connection.incoming, idle_s=timeout_s, stall_s=timeout_s)
    frames.reader.feed(received)
    frame, hello = _next(frames, connection)
    if not isinstance(hello, HerdHelloRequest) or hello.purpose != Purpose.PEER:
        raise RemoteProtocolError("it does not begin as a link")
    if not hmac.compare_digest(hello.session, session):
        raise RemoteProtocolError("a link for another session")
    answer = HerdHelloResponse(features=agree_features(hello, int(FEATURES)), session=session)
    frames.send([connection.reply(frame, answer)])
    frames.reader.switch(connection.incoming)
    frame, request = _next(frames, connection)
    if not isinstance(request, GroupLinkRequest):
        raise OutOfOrder("it does not say which group it is for")
    rank = expect(request.group, request.rank)
    frames.send([connection.reply(frame, GroupLinkResponse(rank))])
    early = bytes(frames.reader.buffered)
    return request.group, Link(request.rank, stream.peer, stream, early, received=connection.sequence)


def _next(frames: FrameStream, connection: ServerConnection) -> tuple[Frame, Message]:
    frame = frames.frame()
    if frame is None:
        raise PeerClosed("it left before the link stood")
    incoming = connection.check(frame)
    return frame, connection.request(frame, frames.take(incoming.fixed_size))
