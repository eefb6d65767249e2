"""A session: serves one client from its first allocation on, then ends and gives its memory back to the system.

`entry.py` starts it. It loads ggml, says that it is ready and waits for a client's socket. The main thread serves the
stream. A second socket of the same client (a control connection) gets a thread of its own here, so that PING is
answered and CANCEL heard while a graph computes: ctypes lets other threads run during a call into ggml.
"""

from __future__ import annotations

import select
import sys
import threading
from typing import TYPE_CHECKING, Final

from wireherd import ggml
from wireherd.collective.links import take
from wireherd.collective.schedule import MAX_WORLD
from wireherd.errors import ProtocolError, TransportError, WireherdError
from wireherd.obs.log import get_logger
from wireherd.protocol.connection import ServerConnection
from wireherd.protocol.messages_herd import Purpose
from wireherd.protocol.table import State
from wireherd.session.server import serve
from wireherd.transport import tcp
from wireherd.worker.channel import Kind, Message
from wireherd.worker.control import ControlDispatcher
from wireherd.worker.dispatch import Dispatcher
from wireherd.worker.handover import Handover
from wireherd.worker.lifeline import describe, leave
from wireherd.worker.peers import own_addresses

if TYPE_CHECKING:
    from wireherd.transport import Stream
    from wireherd.worker.lifeline import Lifeline

log = get_logger(__name__)

#: after the client hung up: seconds until what still runs for it is cancelled, and until the process ends anyway
_CANCEL_AFTER_S: Final = 1.0
_GIVE_UP_AFTER_S: Final = 10.0
#: more control connections than any client has use for
_MAX_CONTROLS: Final = 8


def work(line: Lifeline) -> str:
    """Wait for a client and serve it; returns why that ended."""
    library = ggml.load(line.settings.ggml)
    connection = _new_connection(line)
    dispatcher = Dispatcher(library, line.settings, connection.dialect, account=line)
    _warm_up(dispatcher)
    line.ready(describe(dispatcher))
    return Session(line, connection, dispatcher, line.work.get()).run()


def _warm_up(dispatcher: Dispatcher) -> None:
    """Do what the first graph would wait for. A GPU's context is left alone: an idle one costs its owner memory."""
    devices = dispatcher.state.devices
    for index in range(len(devices)):
        device = devices.get(index)
        if device.host and device.backend is not None:
            log.debug("%s is warm", device.native.name)


def _new_connection(line: Lifeline) -> ServerConnection:
    return ServerConnection(line.settings.protocol, state=State.HELLO, herd=not line.settings.plain)


class Session:
    """One client's stream, its control connections, and the links of its groups as they come in."""

    def __init__(self, line: Lifeline, connection: ServerConnection, dispatcher: Dispatcher, first: Message) -> None:
        handover = Handover.from_json(first.text)
        self._line = line
        self._number = handover.number
        self._name = bytes.fromhex(handover.session)
        self._read = first.data
        self._connection = connection
        self._dispatcher = dispatcher
        self._stream = _stream(first, handover)
        self._controls = threading.Semaphore(_MAX_CONTROLS)
        self._links = threading.Semaphore(MAX_WORLD)
        dispatcher.session = self._name
        dispatcher.state.addresses = line.settings.advertise or own_addresses(self._stream, handover.listening)

    def run(self) -> str:
        """Serve the stream to its end; returns why it ended."""
        threading.Thread(target=self._take_more, name="control", daemon=True).start()
        threading.Thread(target=self._watch, name="hang-up", daemon=True).start()
        try:
            reason = serve(self._stream, self._connection, self._dispatcher, received=self._read)
        except (TransportError, ProtocolError) as error:
            reason = str(error)
        return f"ended: {reason}"

    def _take_more(self) -> None:
        """Give each further socket a thread."""
        while True:
            message = self._line.work.get()
            handover = Handover.from_json(message.text)
            link = handover.purpose == Purpose.PEER
            room, serve_it = (self._links, self._link) if link else (self._controls, self._control)
            if room.acquire(blocking=False):
                threading.Thread(target=serve_it, args=(message, handover), name="control", daemon=True).start()
            elif message.sock is not None:
                message.sock.close()

    def _link(self, message: Message, handover: Handover) -> None:
        """Greet another worker and lead its link to the group it is for."""
        groups = self._dispatcher.state.groups
        try:
            stream = _stream(message, handover)
            try:
                group, link = take(
                    stream,
                    _new_connection(self._line),
                    message.data,
                    self._name,
                    lambda name, rank: groups.named(name).expect(rank),
                    timeout_s=self._line.settings.handshake_timeout_s,
                )
                groups.named(group).put(link)
            except BaseException:
                stream.close()
                raise
            log.debug("session %d: link of %s is for rank %d", self._number, handover.peer, link.rank)
        except WireherdError as error:
            log.info("session %d: no link with %s: %s", self._number, handover.peer, error)
        finally:
            self._links.release()

    def _control(self, message: Message, handover: Handover) -> None:
        try:
            if handover.purpose != Purpose.CONTROL:
                raise TransportError("a session takes one stream only")
            dispatcher = ControlDispatcher(self._name, self._dispatcher.cancel)
            with _stream(message, handover) as stream:
                reason = serve(stream, _new_connection(self._line), dispatcher, received=message.data)
            log.debug("session %d: control connection of %s ended: %s", self._number, handover.peer, reason)
        except WireherdError as error:
            log.debug("session %d: control connection ended: %s", self._number, error)
        finally:
            self._controls.release()

    def _watch(self) -> None:
        """End what runs for a client that hung up: nobody is left to take the result."""
        if sys.platform != "linux":
            return  # no other system tells of a hang-up before all data is read
        poller = select.poll()
        poller.register(self._stream.fileno(), select.POLLRDHUP)
        poller.poll()
        threading.Event().wait(_CANCEL_AFTER_S)
        self._dispatcher.cancel()
        threading.Event().wait(_GIVE_UP_AFTER_S)
        self._line.send(Message(Kind.ENDED, text="ended: the client left while a graph was running"))
        leave(0)


def _stream(message: Message, handover: Handover) -> Stream:
    if message.sock is None:
        raise TransportError("the supervisor sent no socket")
    return tcp.from_socket(message.sock, handover.peer)
