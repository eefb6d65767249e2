"""Looking at processes through /proc: whose children they are, what memory they hold, who is left over."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

#: every process that a test run starts inherits this variable, so a leftover can be told from a stranger
RUN_VARIABLE = "WIREHERD_TEST_RUN"
RUN_ID = os.environ.setdefault(RUN_VARIABLE, uuid.uuid4().hex)

HAVE_PROC = Path("/proc/self/stat").exists()


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on (its name may hold blanks), or None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in "ZX"


def descendants(pid: int) -> list[int]:
    """Process ids of all living children, grandchildren and so on, not of `pid` itself."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) and fields[0] not in "ZX":
            parents[int(entry.name)] = int(fields[1])
    found: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop()
        children = [child for child, of in parents.items() if of == parent]
        found += children
        queue += children
    return found


def resident_bytes(pid: int) -> int:
    """Memory that a process and its descendants hold for themselves: shared library pages count only once."""
    total = 0
    for each in [pid, *descendants(pid)]:
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its living descendants so far."""
    ticks = 0
    for each in [pid, *descendants(pid)]:
        if fields := _stat(each):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def ours() -> list[int]:
    """Living processes that this test run started, directly or not, other than the run itself."""
    mark = f"{RUN_VARIABLE}={RUN_ID}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked = mark in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if marked and alive(int(entry.name)):
            found.append(int(entry.name))
    # A test run inside a test run: its ancestors carry the mark too and are no leftovers.
    ancestor = os.getppid()
    while ancestor > 1:
        if ancestor in found:
            found.remove(ancestor)
        fields = _stat(ancestor)
        ancestor = int(fields[1]) if fields else 0
    return found


def command_line(pid: int) -> str:
    """What was started, for a message."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Poll until `condition()` is true.

    Raises:
        AssertionError: it was not within `timeout_s`; `what` says what was hoped for.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.02)


def open_descriptors() -> dict[int, str]:
    """Descriptors of this process and what they point at."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:
            continue
    return found
