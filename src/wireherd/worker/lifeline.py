"""What ties every process of a worker to its supervisor: settings come from there, memory is asked for there.

The thread that reads the channel ends the process the moment the supervisor is gone, also while the main thread
computes: ctypes lets other threads run during a call into ggml. Nothing is cleaned up then, the system does it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NoReturn

from wireherd.errors import TransportError
from wireherd.obs.log import get_logger
from wireherd.worker.channel import Channel, Kind, Message
from wireherd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from wireherd.worker.dispatch import Dispatcher

log = get_logger(__name__)

#: how likely the system is to end this process when memory runs out, and a value near the top (Linux only)
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_FIRST_TO_GO: Final = "800"


class Lifeline:
    """The process's side of its channel. Messages with work are in `work`; memory is asked for with `reserve`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        config = channel.receive()
        if config is None:
            leave(0)
        #: what the owner of the worker asked for
        self.settings = WorkerSettings.from_json(config.text)
        #: messages for the main thread, in order
        self.work: SimpleQueue[Message] = SimpleQueue()
        self._grants: SimpleQueue[int] = SimpleQueue()
        self._asking = threading.Lock()
        threading.Thread(target=self._read, name="lifeline", daemon=True).start()

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                if message.kind is Kind.GRANT:
                    self._grants.put(message.number)
                else:
                    self.work.put(message)
        except TransportError as error:
            log.critical("%s", error)
            leave(1)
        leave(0)

    def send(self, message: Message) -> None:
        """Tell the supervisor something; if it is gone, this process ends here."""
        try:
            self._channel.send(message)
        except TransportError:
            leave(0)

    def ready(self, info: dict[str, Any]) -> None:
        """Tell the supervisor that work can come."""
        self.send(Message(Kind.READY, text=json.dumps(info)))

    def reserve(self, size: int) -> bool:
        """Ask for `size` bytes of the worker's memory limit, shared by all sessions; False if they are not there."""
        if self.settings.memory_limit is None:
            return True
        with self._asking:
            self.send(Message(Kind.RESERVE, number=size))
            return bool(self._grants.get())

    def free(self) -> int | None:
        """Bytes of the worker's memory limit that nobody holds; None without a limit."""
        if self.settings.memory_limit is None:
            return None
        with self._asking:
            self.send(Message(Kind.SHARE))
            return self._grants.get()

    def release(self, size: int) -> None:
        """Give `size` reserved bytes back."""
        if self.settings.memory_limit is not None:
            self.send(Message(Kind.RELEASE, number=size))


def expect_the_worst() -> None:
    """Let a client that breaks or fills this process break no more than that.

    If the system runs out of memory, it ends a session and nothing else of the machine; and a session that dies leaves
    no core file, which would be as large as the model, each time.
    """
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 (POSIX only)

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        _OOM_SCORE.write_text(_FIRST_TO_GO, "ascii")
    except OSError as error:
        log.debug("the system does not let itself be told what to end first: %s", error)


def describe(dispatcher: Dispatcher) -> dict[str, Any]:
    """What a process serves, for the supervisor to announce."""
    devices = dispatcher.state.devices
    names = [devices.get(index).native.name for index in range(len(devices))]
    return {"devices": names, "library": dispatcher.state.lib.build}


def leave(code: int) -> NoReturn:
    """End this process at once, whatever its other threads do."""
    sys.stderr.flush()
    os._exit(code)
