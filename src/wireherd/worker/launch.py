"""Start a worker as a process of its own and wait until it serves: for the demo, the bench and tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from wireherd.errors import WireherdError
from wireherd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

_LINE: Final = re.compile(
    r"listening on (?P<endpoint>.+?(?::(?P<port>\d+))?)(?:, .+)? "
    r"\(protocol (?P<protocol>\S+), devices (?P<devices>.*)\)"
)
_STOP_TIMEOUT_S: Final = 3.0


class WorkerStartError(WireherdError):
    """A worker process ended before it served; the message is what it said."""


class WorkerProcess:
    """A running worker. Its processes end with it, and it ends when this object's owner does.

    Attributes:
        endpoint: address that clients connect to; the first, if it listens at several.
        port: the port alone; 0 for a unix socket.
        pid: process number of the supervisor.
        devices: what it serves, as it announced.
    """

    def __init__(self, process: subprocess.Popen[bytes], line: re.Match[str], log: Path) -> None:
        self._process = process
        self._log = log
        self.endpoint = line["endpoint"]
        self.port = int(line["port"] or 0)
        self.pid = process.pid
        self.devices = tuple(line["devices"].split(", "))

    @property
    def returncode(self) -> int | None:
        """Exit code once the worker has ended, negative for a signal; None while it runs."""
        return self._process.poll()

    def log(self) -> str:
        """What the worker has logged so far."""
        return _read(self._log)

    def kill(self) -> None:
        """End the supervisor at once, as a crash would; its processes notice and follow."""
        self._process.kill()
        self._process.wait()

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> int:
        """Ask the worker to end, wait for it and return its exit code; it is killed if it does not obey in time."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._log.unlink(missing_ok=True)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def spawn(
    settings: WorkerSettings | Sequence[str] = (), *, timeout_s: float = 60.0, hears_ctrl_c: bool = True
) -> WorkerProcess:
    """Run `wireherd worker` with these settings or arguments and return once it listens.

    Without a port among the arguments the system chooses one. The worker's log is kept in a temporary file.
    Unless it `hears_ctrl_c`, Ctrl-C at the terminal is for the caller alone.

    Raises:
        WorkerStartError: it ended, or said nothing for `timeout_s`; the message is the last line it wrote.
    """
    arguments = settings.to_arguments() if isinstance(settings, WorkerSettings) else list(settings)
    if not any(argument in {"-p", "--port"} or argument.startswith("--port=") for argument in arguments):
        arguments += ["--port", "0"]
    descriptor, name = tempfile.mkstemp(prefix="wireherd-worker-", suffix=".log")
    log = Path(name)
    command = [sys.executable, "-m", "wireherd", "worker", "--until-eof", *arguments]
    with os.fdopen(descriptor, "wb") as file:
        process = subprocess.Popen(  # noqa: S603 (our own module)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=not hears_ctrl_c and sys.platform != "win32",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0) if not hears_ctrl_c else 0,
        )
    try:
        first = _first_line(process, timeout_s)
        line = _LINE.search(first or "")
        if line is not None:
            return WorkerProcess(process, line, log)
        if first is None:
            reason = f"the worker did not start within {timeout_s:g} s"
        else:
            said = _read(log).strip().splitlines()
            reason = said[-1] if said else f"the worker ended with exit code {process.returncode} and no word"
        raise WorkerStartError(reason.removeprefix("wireherd: ").removeprefix("error: "))
    except BaseException:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        log.unlink(missing_ok=True)
        raise


def _first_line(process: subprocess.Popen[bytes], timeout_s: float) -> str | None:
    """The first line on standard output, empty if the process ends without one; None if there is none in time."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    pipe = process.stdout
    if pipe is None:
        return ""
    reader = threading.Thread(target=lambda: lines.put(pipe.readline()), daemon=True)
    reader.start()
    try:
        line = lines.get(timeout=timeout_s)
    except Empty:
        process.kill()
        reader.join()
        return None
    if not line:
        process.wait()
    return line.decode(errors="replace")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
