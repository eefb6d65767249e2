"""Measure what a TCP option does to round trips and to bulk, in alternating pairs against the options that we set.

    python tools/measure_tcp.py                         both ends here, over loopback
    python tools/measure_tcp.py serve 0.0.0.0:9000      the far end, on another machine or in another namespace
    python tools/measure_tcp.py 10.0.0.2:9000           the near end

Three patterns, the ones of this package: `call` is one small request and its answer; `token` is several small writes,
one after the other, then an answer of 8 KiB, as a token of a model that is split by layer; `bulk` is a large write and
a short answer, as a model is loaded. A ratio is time with the option over time without; its interval holds 90 %.
Options are set on both ends. Load on the machine moves all times, and ratios of pairs much less.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import struct
import sys
import threading
import time
from typing import Final

from wireherd.transport import tcp

#: option sets by name: level, option, value; what this system lacks is left out
OPTIONS: Final = {
    "no NODELAY": [("IPPROTO_TCP", "TCP_NODELAY", 0)],
    "QUICKACK": [("IPPROTO_TCP", "TCP_QUICKACK", 1)],
    "SNDBUF+RCVBUF 4 MiB": [("SOL_SOCKET", "SO_SNDBUF", 4 << 20), ("SOL_SOCKET", "SO_RCVBUF", 4 << 20)],
    "SNDBUF+RCVBUF 64 KiB": [("SOL_SOCKET", "SO_SNDBUF", 64 << 10), ("SOL_SOCKET", "SO_RCVBUF", 64 << 10)],
    "NOTSENT_LOWAT 128 KiB": [("IPPROTO_TCP", "TCP_NOTSENT_LOWAT", 128 << 10)],
    "BUSY_POLL 50 us": [("SOL_SOCKET", "SO_BUSY_POLL", 50)],
    "no keepalive": [("SOL_SOCKET", "SO_KEEPALIVE", 0)],
    "the same again": [],
}
#: numbers that Python's socket module does not name (asm-generic/socket.h, linux/tcp.h)
NUMBERS: Final = {"SO_BUSY_POLL": 46, "TCP_NOTSENT_LOWAT": 25, "TCP_QUICKACK": 12}

REQUEST: Final = struct.Struct("<IIII")  # bytes of each write, writes, bytes of the answer, index of the options
SMALL: Final = 200
ANSWER: Final = 8 << 10


def configure(sock: socket.socket, name: str) -> None:
    """Set what the package sets, then the options of that name."""
    tcp.tune(sock)
    for level, option, value in OPTIONS[name]:
        number = getattr(socket, option, NUMBERS.get(option) if sys.platform == "linux" else None)
        if number is not None:
            sock.setsockopt(getattr(socket, level), number, value)


def read(sock: socket.socket, size: int) -> None:
    """Receive and forget."""
    chunk = bytearray(min(size, 1 << 20))
    while size:
        got = sock.recv_into(chunk, min(size, len(chunk)))
        if not got:
            raise EOFError
        size -= got


def serve(listener: socket.socket) -> None:
    """Answer one connection after the other."""
    while True:
        sock, _ = listener.accept()
        with sock:
            configure(sock, "the same again")
            header = bytearray(REQUEST.size)
            while True:
                try:
                    if sock.recv_into(header, len(header), socket.MSG_WAITALL) < len(header):
                        break
                    size, writes, answer, index = REQUEST.unpack(header)
                    if not writes:
                        configure(sock, list(OPTIONS)[index])
                    read(sock, size * writes)
                    sock.sendall(bytes(answer))
                except (EOFError, OSError):
                    break


class Near:
    """The measuring end of one connection."""

    def __init__(self, host: str, port: int, name: str) -> None:
        self.sock = socket.create_connection((host, port))
        configure(self.sock, name)
        self.quick = name == "QUICKACK"
        self.ask(0, 0, 1, list(OPTIONS).index(name))

    def ask(self, size: int, writes: int, answer: int, index: int = 0) -> float:
        """Seconds from the first byte out to the last byte in."""
        payload = bytes(size)
        begun = time.perf_counter()
        header = REQUEST.pack(size, writes, answer, index)
        if size <= SMALL:
            self.sock.sendall(header)
            for _ in range(writes):
                self.sock.sendall(payload)
        else:
            self.sock.sendall(header + payload)
        if self.quick:  # the system forgets it by itself
            self.sock.setsockopt(socket.IPPROTO_TCP, NUMBERS["TCP_QUICKACK"], 1)
        read(self.sock, answer)
        return time.perf_counter() - begun

    def time(self, pattern: str, args: argparse.Namespace) -> float:
        """Median seconds of one exchange."""
        if pattern == "bulk":
            return self.ask(args.bulk << 20, 1, 1)
        writes = 1 if pattern == "call" else 4
        return statistics.median(self.ask(SMALL, writes, ANSWER if writes > 1 else SMALL) for _ in range(args.calls))


def interval(ratios: list[float]) -> str:
    """Median and the middle 90 %."""
    ordered = sorted(ratios)
    cut = int(len(ordered) * 0.05)
    return f"{statistics.median(ordered):.2f} ({ordered[cut]:.2f} to {ordered[-1 - cut]:.2f})"


def main() -> int:
    """Measure, or be the far end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", nargs="*", metavar="[serve] HOST:PORT")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--calls", type=int, default=40, metavar="N", help="exchanges a figure (default 40)")
    parser.add_argument("--bulk", type=int, default=16, metavar="MIB", help="size of a bulk write (default 16)")
    args = parser.parse_args()
    if len(args.where) == 2:
        host, _, port = args.where[1].rpartition(":")
        serve(socket.create_server((host, int(port))))
    if args.where:
        host, _, port = args.where[0].rpartition(":")
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        host, port = listener.getsockname()
    base_us: dict[str, list[float]] = {}
    print("| option | call | token | bulk |\n|---|---|---|---|")
    for name in OPTIONS:
        cells = []
        for pattern in ("call", "token", "bulk"):
            ratios = []
            for _ in range(args.pairs):
                times = []
                for each in ("the same again", name):
                    near = Near(host, int(port), each)
                    with near.sock:
                        near.time(pattern, argparse.Namespace(calls=3, bulk=1))
                        times.append(near.time(pattern, args))
                base_us.setdefault(pattern, []).append(times[0] * 1e6)
                ratios.append(times[1] / times[0])
            cells.append(interval(ratios))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print("\nbase, median us: " + ", ".join(f"{key} {statistics.median(value):.0f}" for key, value in base_us.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
