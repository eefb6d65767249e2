"""A running worker from the outside: its processes, what they cost, what its log says."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from support import processes


def sessions(worker):
    """Process numbers of sessions, with a client or warm."""
    return [pid for pid in processes.descendants(worker.pid) if "worker.entry session" in processes.command_line(pid)]


def probes(worker):
    return [pid for pid in processes.descendants(worker.pid) if "worker.entry probe" in processes.command_line(pid)]


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def settled(pid, for_s=1.0, within_s=15.0):
    """Descriptors of a process, once their number has stood still: processes that come and go are at rest."""
    end = time.monotonic() + within_s
    count, since = descriptors(pid), time.monotonic()
    while time.monotonic() - since < for_s:
        assert time.monotonic() < end, "the number of descriptors never stands still"
        time.sleep(0.05)
        now = descriptors(pid)
        if now != count:
            count, since = now, time.monotonic()
    return count


def session_of(worker, client):
    """Process number of the session that serves `client`, from the log."""
    address = "{}:{}".format(*client.sock.getsockname())
    end = time.monotonic() + 5
    while True:  # the line may come a moment after the session's first answer
        found = re.findall(rf"{address} connected: session \d+ \(pid (\d+)\)", worker.log())
        if found or time.monotonic() > end:
            break
        time.sleep(0.02)
    assert len(found) == 1
    return int(found[0])
