"""Opening a connection to a worker: HELLO, then HERD_HELLO where the worker offers it.

Whatever is at the other end, this ends within a bounded time and with one sentence that names the endpoint.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wireherd.errors import (
    ConnectError,
    PeerClosed,
    ReadTimeout,
    RemoteError,
    RemoteProtocolError,
    TransportError,
    VersionMismatch,
    WorkerLost,
    WorkerRefused,
)
from wireherd.obs.log import get_logger
from wireherd.protocol.connection import ClientConnection
from wireherd.protocol.messages_herd import FEATURES, NO_SESSION, Feature, HerdHelloRequest, Purpose
from wireherd.protocol.messages_stock import DeviceCountRequest, HelloRequest
from wireherd.protocol.table import BY_MESSAGE, Opcode
from wireherd.protocol.version import NEWEST, Version
from wireherd.session.frames import FrameStream
from wireherd.session.racing import quickest
from wireherd.session.retry import pauses
from wireherd.transport import Address, connect

if TYPE_CHECKING:
    from wireherd.protocol.fields import Message
    from wireherd.transport import Stream

log = get_logger(__name__)

#: the answer to HERD_HELLO may have to wait until the worker has started a process
SESSION_TIMEOUT_S: Final = 30.0
#: one wait in the kernel, so that signals are seen
_SLICE_S: Final = 0.05
#: servers before 4.0 close on a HELLO with capabilities; this stands for all of them
_WITHOUT_CAPS: Final = Version(3, 6)


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection after its handshake; the frame reader may hold bytes already.

    Attributes:
        connection: the protocol's state.
        frames: the stream behind it.
        address: the one of the worker's addresses that was taken; a session's further connections go there too.
    """

    connection: ClientConnection
    frames: FrameStream
    address: Address


class _Closed(Exception):  # noqa: N818 - no error yet: the caller has another way to try
    """The server closed instead of answering `command`."""

    def __init__(self, command: Opcode, how: str) -> None:
        self.command = command
        super().__init__(how)


def open_stream(
    endpoint: str,
    *,
    timeout_s: float,
    at: str | None = None,
    retry_s: float = 0.0,
    herd: bool = True,
    features: Feature = FEATURES,
) -> Opened:
    """Open the stream of a new session.

    Args:
        endpoint: the worker's address as the user spelled it, or several, of which the quickest is taken.
        timeout_s: for the connection and for the answer to HELLO.
        at: its address, where it is not named by that.
        retry_s: how long to try again while nobody answers at the address; 0 tries once.
        herd: whether to use our extension where the worker offers it.
        features: what of the extension is wanted.

    Raises:
        UsageError: `endpoint` is no address.
        WorkerLost: it cannot be reached, or does not answer in time.
        WorkerRefused: what is there is no ggml-rpc server, or said no.
        VersionMismatch: it speaks a version that we do not.
    """
    addresses = Address.parse_all(endpoint if at is None else at)
    end = time.monotonic() + retry_s
    for pause_s in pauses(retry_s):
        if time.monotonic() > end:
            break  # the attempts themselves took the time
        try:
            address = _choose(endpoint, addresses, timeout_s)
            return _open(endpoint, address, timeout_s, herd, Purpose.STREAM, NO_SESSION, features)
        except WorkerLost as error:
            log.info("%s; trying again", error)
            time.sleep(pause_s)
    address = _choose(endpoint, addresses, timeout_s)
    return _open(endpoint, address, timeout_s, herd, Purpose.STREAM, NO_SESSION, features)


def _choose(endpoint: str, addresses: tuple[Address, ...], timeout_s: float) -> Address:
    """The address to go by: the only one, or the one that answers HELLO soonest."""
    if len(addresses) == 1:
        return addresses[0]
    try:
        return quickest(
            addresses, lambda each: _Greeting(endpoint, each, timeout_s, Purpose.STREAM, NO_SESSION).measure()
        )
    except ConnectError as error:
        raise WorkerLost(endpoint, str(error)) from error


def open_control(endpoint: str, address: Address, session: bytes, *, timeout_s: float) -> Opened:
    """Open a control connection beside the stream of `session`, at the address that the stream goes by.

    Raises:
        WorkerLost: the worker cannot be reached any more, or does not answer in time.
        WorkerRefused: it does not know the session.
    """
    opened = _open(endpoint, address, timeout_s, True, Purpose.CONTROL, session)
    if opened.connection.hello is None:
        opened.frames.stream.close()
        raise WorkerRefused(endpoint, "would not open a control connection beside its stream")
    return opened


def open_peer(address: Address, session: bytes, *, timeout_s: float) -> Opened:
    """Open a link to another worker, for its session of that name.

    Raises:
        WorkerLost: the worker cannot be reached, does not answer in time, or does not know the session.
        WorkerRefused: what is there is no wireherd worker, or said no.
    """
    endpoint = str(address)
    try:
        opened = _Greeting(endpoint, address, timeout_s, Purpose.PEER, session, timeout_s).open(NEWEST, herd=True)
    except _Closed as error:
        raise WorkerLost(endpoint, f"{error} at {error.command.name}") from error
    if opened.connection.hello is None:
        opened.frames.stream.close()
        raise WorkerRefused(endpoint, "is no worker that takes links from others")
    return opened


def _open(
    endpoint: str,
    address: Address,
    timeout_s: float,
    herd: bool,
    purpose: Purpose,
    session: bytes,
    features: Feature = FEATURES,
) -> Opened:
    greeting = _Greeting(endpoint, address, timeout_s, purpose, session, features=features)
    try:
        return greeting.open(NEWEST, herd)
    except _Closed as error:
        if error.command is not Opcode.HELLO and purpose is not Purpose.STREAM:
            raise WorkerLost(endpoint, f"{error} at {error.command.name}") from error
        try:
            if error.command is Opcode.HELLO:
                return greeting.open(_WITHOUT_CAPS, herd=False)
            log.warning("worker %s closed the connection at HERD_HELLO: going on with plain ggml RPC", endpoint)
            return greeting.open(NEWEST, herd=False)
        except _Closed as again:
            raise WorkerRefused(
                endpoint, f"{again} when greeted: no ggml-rpc server, or one that takes no more clients"
            ) from again


@dataclass(frozen=True, slots=True)
class _Greeting:
    """What stays the same over the attempts to open one connection."""

    endpoint: str
    address: Address
    timeout_s: float
    purpose: Purpose
    session: bytes
    session_timeout_s: float = SESSION_TIMEOUT_S
    features: Feature = FEATURES

    def open(self, version: Version, herd: bool) -> Opened:
        """Connect and shake hands; `version` decides how HELLO is said.

        Raises:
            _Closed: the server closed the connection instead of answering.
        """
        try:
            stream = connect(self.address, self.timeout_s)
        except TransportError as error:
            raise WorkerLost(self.endpoint, str(error)) from error
        try:
            return self._greet(stream, version, herd)
        except BaseException:
            stream.close()
            raise

    def measure(self) -> float:
        """Connect, say HELLO, leave; seconds from HELLO to its answer, or to the refusal of a server before 4.0.

        Raises:
            WorkerLost, WorkerRefused, VersionMismatch: as for `open`.
        """
        try:
            stream = connect(self.address, self.timeout_s)
        except TransportError as error:
            raise WorkerLost(self.endpoint, str(error)) from error
        with stream:
            connection = ClientConnection(f"worker {self.endpoint}", version=NEWEST, herd=False)
            frames = FrameStream(stream, connection.incoming, idle_s=None, stall_s=self.timeout_s, slice_s=_SLICE_S)
            begun = time.perf_counter()
            try:
                self._ask(connection, frames, HelloRequest(), self.timeout_s)
                took_s = time.perf_counter() - begun
                if connection.version is not None and connection.version[:2] == NEWEST[:2]:
                    # a worker takes one that leaves without a question for a client of another version, and says so
                    self._ask(connection, frames, DeviceCountRequest(), self.timeout_s)
            except _Closed:
                log.debug("%s closed the connection at HELLO", self.address)
                took_s = time.perf_counter() - begun
            return took_s

    def _greet(self, stream: Stream, version: Version, herd: bool) -> Opened:
        connection = ClientConnection(f"worker {self.endpoint}", version=version, herd=herd)
        frames = FrameStream(stream, connection.incoming, idle_s=None, stall_s=self.timeout_s, slice_s=_SLICE_S)
        self._ask(connection, frames, HelloRequest(), self.timeout_s)
        if connection.herd_offered:
            request = HerdHelloRequest(purpose=int(self.purpose), features=int(self.features), session=self.session)
            self._ask(connection, frames, request, max(self.timeout_s, self.session_timeout_s))
            frames.reader.switch(connection.incoming)
        return Opened(connection, frames, self.address)

    def _ask(self, connection: ClientConnection, frames: FrameStream, request: Message, timeout_s: float) -> None:
        """Send one command of the handshake and take its answer, which acts on `connection`."""
        command = BY_MESSAGE[type(request)].opcode
        frames.idle_s = frames.stall_s = timeout_s
        try:
            frames.send([connection.request(request)])
            frame = frames.frame()
            if frame is None:
                raise _Closed(command, "closed the connection")
            pending = connection.match(frame)
            connection.response(pending, frame, frames.take(frame.size))
        except ReadTimeout as error:
            raise WorkerLost(
                self.endpoint,
                f"took the connection but did not answer {command.name} within {timeout_s:g} s: "
                f"no ggml-rpc server, or one that is busy with another client",
            ) from error
        except PeerClosed as error:
            raise _Closed(command, str(error)) from error
        except RemoteError as error:
            raise WorkerRefused(self.endpoint, str(error)) from error
        except VersionMismatch:
            raise
        except RemoteProtocolError as error:
            raise WorkerRefused(
                self.endpoint, f"is no ggml-rpc server: its answer to {command.name} makes no sense ({error})"
            ) from error
