"""Stock peers against ours, in alternating pairs of `wireherd bench`: python -m stock.compare VERSION WHAT WORKERS [flags].

WHAT is: both     a stock client on stock servers (a), our client on our workers (b)
         client   a stock client (a) and our client (b), each on stock servers of its own
         worker   a stock client on stock servers (a), and on our workers (b)

    PYTHONPATH=tests python -m stock.compare 8 both 2 -m smollm2-135m -sm tensor --link 0.5 -p 0 -n 32 -r 9

The flags are those of `wireherd bench`.

Every server and worker computes with one thread, and so does what clients compute. The stock peers of a version are
fetched (7: built) on first use.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stock.get_stock import stock
from stock.running import environment, listening
from support.ports import free_port
from support.workers import ServerProcess

_TESTS = str(Path(__file__).resolve().parent.parent)
_DIALECTS = {"4": "4.0", "5": "5.0", "7": "7.0", "8": "8.0"}
_START_S = 60.0


@contextlib.contextmanager
def server(version: str) -> Iterator[str]:
    """A stock RPC server with one thread; yields its endpoint."""
    port = free_port()
    if version == "8":
        command = [sys.executable, "-m", "stock.peer8", str(stock("8")), "serve", f"127.0.0.1:{port}"]
        env: dict[str, str] = {}
    else:
        programs = stock(version) / "bin"
        command = [str(programs / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1", "-d", "CPU"]
        env = environment(programs)
    process = ServerProcess(command, env=env, ready=None)
    try:
        end = time.monotonic() + _START_S
        while not listening(port):
            if not process.running() or time.monotonic() > end:
                sys.exit(f"the stock server did not start: {process.errors()}")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.stop(grace_s=0)


def command(version: str, what: str, count: int, servers: list[str], flags: list[str]) -> list[str]:
    """The words of the bench: sides, programs, one thread each."""
    driver = f"{sys.executable} -m stock.driver {version} {{model}} --rpc {{rpc}} --sm {{sm}} "
    driver += "--ctx {ctx} --ub {ub} -t 1"
    first = ",".join(servers[:count])
    second = ",".join(servers[count:]) or "workers"
    words = [sys.executable, "-m", "wireherd", "bench", "-t", "1", "--compare", f"rpc={first};{second}"]
    names = {"both": "stock,ours", "client": "stock client,our client", "worker": "stock server,our worker"}[what]
    words += ["--driver-a", driver, "--names", names]
    if what == "worker":
        words += ["--driver-b", driver, "--worker-protocol", _DIALECTS[version]]
    if what != "client":
        words += ["--workers", str(count), "--worker-threads", "1"]
    return words + flags


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[0] not in _DIALECTS or arguments[1] not in {"both", "client", "worker"}:
        sys.exit(__doc__)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_TESTS, os.environ.get("PYTHONPATH"))))
    version, what, count = arguments[0], arguments[1], int(arguments[2])
    with contextlib.ExitStack() as stack:
        # a stock server serves one client at a time, so that each client has its own
        needed = 2 * count if what == "client" else count
        servers = [stack.enter_context(server(version)) for _ in range(needed)]
        return subprocess.run(command(version, what, count, servers, arguments[3:]), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
