"""A process of the worker, seen from the supervisor: started by spawn, told its settings, watched to its end."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from wireherd.obs.log import get_logger
from wireherd.worker.channel import Kind, Message, pair
from wireherd.worker.loop_channel import AsyncChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.worker.settings import WorkerSettings

log = get_logger(__name__)

#: seconds a process may take to be gone after its channel has ended (freeing memory takes time), then it is killed
_EXIT_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.01
_numbers = itertools.count(1)


#: what the process runs; see there for its arguments
_ENTRY: Final = "wireherd.worker.entry"


class Role(Enum):
    """What a process is for; the value is its word on the process's command line."""

    PROBE = "probe"
    SESSION = "session"


class Child:
    """One process. Create it on the event loop; `on_ready`, `on_message` and `on_exit` are called there.

    Attributes:
        number: counts all processes of this supervisor, for the log.
        info: what the process reported when it was ready; None before.
        failure: exit code and sentence, when the process said that it cannot start.
        ended: the reason the process gave for ending, if any.
    """

    def __init__(
        self,
        role: Role,
        settings: WorkerSettings,
        *,
        on_ready: Callable[[Child], None],
        on_message: Callable[[Child, Message], None],
        on_exit: Callable[[Child], None],
    ) -> None:
        self.number = next(_numbers)
        self.role = role
        self.info: dict[str, Any] | None = None
        self.failure: tuple[int, str] | None = None
        self.ended: str | None = None
        self._on_ready = on_ready
        self._on_message = on_message
        self._on_exit = on_exit
        ours, theirs = pair()
        self._channel = AsyncChannel(ours, self._received, self._channel_ended)
        try:
            with theirs:
                self._process = _spawn(role, theirs)
        except BaseException:
            self._channel.close()
            raise
        self._channel.peer_pid = self._process.pid
        self._reaper: asyncio.Task[None] | None = None
        self.send(Message(Kind.CONFIG, text=settings.to_json()))

    @property
    def pid(self) -> int:
        """System's number of the process."""
        return self._process.pid

    @property
    def exited(self) -> bool:
        """Whether the process is gone and has been waited for."""
        return self._process.returncode is not None

    def send(self, message: Message) -> None:
        """Send a message; a socket in it changes hands."""
        self._channel.send(message)

    def kill(self) -> None:
        """End the process at once."""
        if not self.exited:
            self._process.kill()

    @property
    def crashed(self) -> bool:
        """Whether the process died of something it did not expect."""
        return bool(self._process.returncode)

    def reason(self) -> str:
        """How the process ended, in words."""
        code = self._process.returncode
        if code is None:
            return "still running"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return f"killed by {name}"
        if self.failure is not None:
            return self.failure[1]
        if self.ended:
            return self.ended
        return "ended" if code == 0 else f"ended with exit code {code}"

    async def close(self, grace_s: float) -> None:
        """Close the channel, which asks the process to end; after `grace_s` it is killed. Returns when it is gone."""
        self._channel.close()
        await self._wait(grace_s)

    def _received(self, message: Message) -> None:
        if message.kind is Kind.READY:
            self.info = json.loads(message.text)
            self._on_ready(self)
        elif message.kind is Kind.FAILED:
            self.failure = (message.number, message.text)
        elif message.kind is Kind.ENDED:
            self.ended = message.text
        else:
            self._on_message(self, message)

    def _channel_ended(self) -> None:
        self._reaper = asyncio.get_running_loop().create_task(self._reap())

    async def _reap(self) -> None:
        await self._wait(_EXIT_TIMEOUT_S)
        self._on_exit(self)

    async def _wait(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._process.poll() is None:
            if loop.time() > deadline:
                log.warning("process %d (pid %d) did not end by itself and is killed", self.number, self.pid)
                self._process.kill()
                deadline = float("inf")
            await asyncio.sleep(_POLL_S)


def _spawn(role: Role, channel_end: Any) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter that owns `channel_end`; a session of its own keeps the terminal's Ctrl-C away."""
    command = [sys.executable, "-m", _ENTRY, role.value]
    # numpy would start a thread per core for linear algebra that no process of ours does; and where ggml aborts, it
    # would start a debugger for each graph that a client thought up
    environment = {"OPENBLAS_NUM_THREADS": "1", "GGML_NO_BACKTRACE": "1", **os.environ}
    if sys.platform == "win32":
        process = subprocess.Popen(  # noqa: S603 (our own module)
            [*command, "stdin"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        if process.stdin is not None:
            process.stdin.write(channel_end.share(process.pid))
            process.stdin.close()
        return process
    return subprocess.Popen(  # noqa: S603 (our own module)
        [*command, str(channel_end.fileno())],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=(channel_end.fileno(),),
        start_new_session=True,
    )
