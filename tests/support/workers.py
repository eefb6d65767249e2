"""Real workers as processes of their own, on ports the system chooses."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping

from support import processes

START_TIMEOUT_S = 60.0
_READY = re.compile(r"listening on ((?:unix|device):[^\s,]+|\S+:\d+)")


class ServerProcess:
    """A server process; what it says on stderr is kept for messages.

    With `ready` it is waited for until a line on stdout matches; the first group is its endpoint.
    """

    def __init__(
        self, command: list[str], *, env: Mapping[str, str] | None = None, ready: re.Pattern[str] | None = _READY
    ) -> None:
        self.command = command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.endpoint = ""
        try:
            if ready is not None:
                self.endpoint = self._await_ready(ready)
        except BaseException:
            self.stop(grace_s=0)
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._lines.put(line.decode(errors="replace"))
        self._lines.put(None)

    def _await_ready(self, ready: re.Pattern[str]) -> str:
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.command} was not ready in time: {self.errors()}") from None
            if line is None:
                raise AssertionError(f"{self.command} ended with {self.process.wait()}: {self.errors()}")
            self.output.append(line)
            if found := ready.search(line):
                return found[1]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    def errors(self) -> str:
        """What it wrote to stderr so far."""
        if self._errors.closed:
            return ""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[int]:
        return processes.descendants(self.pid)

    def kill(self) -> None:
        """End it as a power cut would: the process that a user sees, at once, with no word."""
        self.process.send_signal(signal.SIGKILL)

    def stop(self, grace_s: float = 10.0) -> int:
        """End it with SIGTERM (SIGKILL after the grace), see that its children are gone, return its exit code."""
        children = self.children() if processes.HAVE_PROC else []
        if self.running():
            self.process.send_signal(signal.SIGCONT)
            if grace_s:
                self.process.terminate()
        try:
            code = self.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        end = time.monotonic() + 5
        while (left := [pid for pid in children if processes.alive(pid)]) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self._reader.join(timeout=5)
        errors = self.errors()
        self._errors.close()
        assert not left, f"{self.command} left {len(left)} processes behind: {errors}"
        return code


class Worker(ServerProcess):
    """`wireherd worker` on a free port, with one thread."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        threads = [] if "-t" in arguments else ["-t", "1"]
        super().__init__([sys.executable, "-m", "wireherd", "worker", "-p", "0", *threads, *arguments], env=env)
