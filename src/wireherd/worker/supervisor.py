"""The worker's first process: listens, owns the other processes, never loads ggml.

Start reading at `run`. The door (`door.py`) decides what each connection needs; probes (`asking.py`) answer questions
without state; each client with state gets a session process of its own (`pool.py`). A session that dies takes nothing
with it but its client's connection: it is logged with the signal that killed it, and its memory is back.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import RemoteProtocolError
from wireherd.obs.log import get_logger
from wireherd.protocol.messages_herd import Purpose
from wireherd.worker.asking import ProbePool
from wireherd.worker.budget import Budget
from wireherd.worker.channel import Kind, Message
from wireherd.worker.door import Door
from wireherd.worker.handover import Handover
from wireherd.worker.listen import close_listeners, endpoint, open_listeners
from wireherd.worker.listen_device import close_devices, open_devices
from wireherd.worker.logs import start_logging
from wireherd.worker.peers import spelled
from wireherd.worker.pool import SessionPool

if TYPE_CHECKING:
    import socket

    from wireherd.transport.device import DeviceListener
    from wireherd.worker.child import Child
    from wireherd.worker.settings import WorkerSettings

log = get_logger(__name__)

#: seconds the processes get to end by themselves; after that they are killed
_GRACE_S: Final = 0.5
_WANTED_FILES: Final = 8192


def run(settings: WorkerSettings) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code of the worker.

    Raises:
        UsageError: settings that make no sense.
        WireherdError: the address cannot be listened on, or a process cannot start (library, device).
    """
    settings.check()
    start_logging(settings)
    _raise_file_limit()
    if sys.platform == "win32":
        asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
    try:
        return asyncio.run(Supervisor(settings).serve())
    except KeyboardInterrupt:
        return 0


class Supervisor:
    """One worker: a listening socket, its door, its probes and its sessions. Create it on a running event loop."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._budget = Budget(settings.memory_limit)
        self._sessions: dict[bytes, tuple[Child, Handover]] = {}
        self._names: dict[Child, bytes] = {}
        self._count = 0
        self._listening: tuple[str, ...] = ()

    async def serve(self) -> int:
        """Start, announce the address on stdout, serve until asked to stop, end everything."""
        stop = asyncio.Event()
        _listen_to_signals(stop)
        if self._settings.until_eof:
            _watch_stdin(stop)
        listeners = open_listeners(self._settings)
        self._listening = tuple(spelled(listener.getsockname()) for listener in listeners)
        try:
            probes = ProbePool(self._settings, self._budget)
            self._pool = SessionPool(self._settings, self._budget, self._session_ended)
            door = Door(self._settings, ask=probes.ask, begin=self._begin, join=self._join)
            devices: list[DeviceListener] = []
            accepting: asyncio.Future[Any] | None = None
            try:
                devices = open_devices(self._settings, asyncio.get_running_loop(), door.admit)
                probes.refill()
                self._pool.refill()
                info = await _first(asyncio.gather(probes.started, self._pool.started), stop)
                if info is not None:
                    self._announce(listeners, info[0])
                    accepting = asyncio.gather(stop.wait(), *(door.accept(listener) for listener in listeners))
                    await _first(accepting, stop)
                    log.info("stopping")
            finally:
                if accepting is not None:
                    accepting.cancel()
                    await asyncio.gather(accepting, return_exceptions=True)
                close_listeners(listeners)
                close_devices(devices)
                await door.close()
                await asyncio.gather(probes.close(_GRACE_S), self._pool.close(_GRACE_S))
        finally:
            close_listeners(listeners)
        return 0

    def _announce(self, listeners: list[socket.socket], info: dict[str, Any]) -> None:
        names = iter(listeners)
        shown = ", ".join(
            host if host in self._settings.device_hosts else endpoint(next(names), host)
            for host in self._settings.hosts
        )
        devices = ", ".join(info["devices"])
        try:
            # programs that start workers wait for this line (launch.py reads it)
            sys.stdout.write(
                f"wireherd worker: listening on {shown} (protocol {self._settings.protocol}, devices {devices})\n"
            )
            sys.stdout.flush()
        except OSError:
            log.debug("nobody reads standard output")
        log.debug("listening on %s, library %s", shown, info.get("library", "?"))

    async def _begin(self, sock: socket.socket, peer: str, frame: bytes) -> None:
        child = await self._pool.take()
        self._count += 1
        name = secrets.token_bytes(16)
        handover = Handover(Purpose.STREAM, name.hex(), peer, self._count, self._listening)
        self._sessions[name] = child, handover
        self._names[child] = name
        child.send(Message(Kind.TAKE, text=handover.to_json(), data=frame, sock=sock))
        log.info("%s connected: session %d (pid %d)", peer, self._count, child.pid)

    def _join(self, sock: socket.socket, peer: str, frame: bytes, name: bytes, purpose: Purpose) -> None:
        child, session = self._sessions.get(name, (None, None))
        if child is None or session is None:
            raise RemoteProtocolError("it wants to join a session that does not exist")
        handover = Handover(purpose, name.hex(), peer, session.number)
        child.send(Message(Kind.TAKE, text=handover.to_json(), data=frame, sock=sock))
        log.debug("%s joined session %d", peer, session.number)

    def _session_ended(self, child: Child) -> None:
        name = self._names.pop(child, b"")
        _, handover = self._sessions.pop(name, (None, None))
        if handover is None:
            return
        crashed = child.crashed
        level = log.error if crashed else log.info
        level("%s disconnected: session %d %s", handover.peer, handover.number, child.reason())


async def _first(starting: asyncio.Future[Any], stop: asyncio.Event) -> Any:
    """The result of `starting`, or None if the worker is to stop before that."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        return None
    finally:
        stopping.cancel()
        starting.cancel()


def _listen_to_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)


def _watch_stdin(stop: asyncio.Event) -> None:
    """Stop when standard input ends: whoever started this worker is gone."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            log.debug("standard input cannot be read")
        try:
            loop.call_soon_threadsafe(stop.set)
        except RuntimeError:
            log.debug("the worker has ended already")

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def _raise_file_limit() -> None:
    """Room for many connections: some systems allow 256 open files by default."""
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 (POSIX only)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.debug("cannot raise the limit on open files: %s", error)
