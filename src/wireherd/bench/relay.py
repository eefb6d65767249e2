"""The process of an emulated link: `python -m wireherd.bench.relay JSON`, started by `link.Link`.

Theory of operation. What is read from a connection gets a time at once: when its last byte has left the sender's line
(the rate), travelled (the delay and the jitter) and come in at the receiver's line (the rate again, cut-through). It is
written when that time has come, in one piece if it came in one piece. Times of one direction never go backwards, so
order is kept. Nothing is dropped: a line that is booked far enough ahead is not read from, and TCP itself tells the
sender to wait.

One thread, one `select`: its timeout is in microseconds (those of poll and epoll are in milliseconds). How late the
system wakes us is measured and woken earlier by, so that a delay of 100 us is one.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

from wireherd.bench.link import LinkShape
from wireherd.transport import Address

_MS: Final = 1_000_000
#: a line is not booked further ahead than this: what waits longer, waits at the sender
_BACKLOG_NS: Final = 10 * _MS
#: what one direction holds at most for a receiver that does not read
_HELD: Final = 64 << 20
#: pieces that are read at once last about this long on the line
_PIECE_NS: Final = _MS // 2
_PIECE: Final = (1500, 1 << 18)
#: `select` takes descriptors up to 1,023; further connections wait to be accepted
_MOST_CONNECTIONS: Final = 450
_CONNECT_S: Final = 5.0
#: how early we are woken at most, and how close to its time a piece may leave
_EARLIEST_NS: Final = 120_000
_CLOSE_NS: Final = 3_000
#: one part in this many is how fast the lateness of waking is learned
_LEARNING: Final = 16
_LONGEST_WAIT_S: Final = 3600.0


class _Line:
    """One direction of one machine's cable, or the air that all share."""

    def __init__(self) -> None:
        self.free_ns = 0


class _Flow:
    """One direction of one connection, over the sender's line and, where it is another one, the receiver's."""

    def __init__(self, source: socket.socket, sink: socket.socket, up: _Line, down: _Line | None) -> None:
        self.source = source
        self.sink = sink
        self.up = up
        self.down = down
        self.queue: deque[tuple[int, memoryview]] = deque()
        self.held = 0
        self.last_ns = 0
        self.blocked = False
        self.ended = False  # the source has sent all
        self.done = False  # and the sink has been told


class Relay:
    """Doors of all workers of a link, and the connections through them."""

    def __init__(self, shape: LinkShape, count: int) -> None:
        self._delay_ns = round(shape.delay_ms * _MS)
        self._jitter_ns = round(shape.jitter_ms * _MS)
        self._bytes_per_ns = shape.rate_mbit / 8000
        least, most = _PIECE
        wanted = int(self._bytes_per_ns * _PIECE_NS) if self._bytes_per_ns else most
        self._piece = min(most, max(least, wanted))
        self._random = random.Random(1)  # noqa: S311 - jitter is no secret
        self._listeners: dict[socket.socket, int] = {}
        self.ports: list[int] = []
        for number in range(2 * count):
            listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
            listener.setblocking(False)
            self._listeners[listener] = number
            self.ports.append(listener.getsockname()[1])
        self._count = count
        self._targets: dict[int, Address] = {}
        air = _Line()
        self._half = shape.half
        self._client = (air, air) if shape.half else (_Line(), _Line())
        self._workers = [(air, air) if shape.half else (_Line(), _Line()) for _ in range(count)]
        self._flows: dict[socket.socket, _Flow] = {}  # by source; that of the other direction is by sink
        self._late_ns = 0.0

    def aim(self, number: int, address: str) -> None:
        """Say where a worker is; from any thread."""
        self._targets[number] = Address.parse(address)

    def run(self) -> None:
        """Relay for ever."""
        while True:
            now = time.perf_counter_ns()
            next_ns: int | None = None
            readable: list[socket.socket] = []
            writable: list[socket.socket] = []
            for flow in list(self._flows.values()):
                if flow.queue and not flow.blocked and flow.queue[0][0] <= now + _CLOSE_NS:
                    self._deliver(flow, now)
                if flow.blocked:
                    writable.append(flow.sink)
                elif flow.queue:
                    next_ns = flow.queue[0][0] if next_ns is None else min(next_ns, flow.queue[0][0])
                if flow.ended or flow.held >= _HELD:
                    continue
                begins_ns = flow.up.free_ns - _BACKLOG_NS
                if begins_ns <= now:
                    readable.append(flow.source)
                else:
                    next_ns = begins_ns if next_ns is None else min(next_ns, begins_ns)
            if len(self._flows) < 2 * _MOST_CONNECTIONS:
                readable += self._listeners
            self._wait(next_ns, [sock for sock in readable if sock.fileno() >= 0], writable)

    def _wait(self, next_ns: int | None, readable: list[socket.socket], writable: list[socket.socket]) -> None:
        wait_s = _LONGEST_WAIT_S
        if next_ns is not None:
            wait_s = max(0.0, (next_ns - self._late_ns - time.perf_counter_ns()) * 1e-9)
        planned = time.perf_counter_ns() + round(wait_s * 1e9)
        ready, free, _ = select.select(readable, [sock for sock in writable if sock.fileno() >= 0], [], wait_s)
        now = time.perf_counter_ns()
        if not ready and not free and wait_s > 0:
            late = self._late_ns + (now - planned - self._late_ns) / _LEARNING
            self._late_ns = min(max(late, 0.0), _EARLIEST_NS)
        for sock in free:
            for flow in self._flows.values():
                if flow.sink is sock:
                    flow.blocked = False
        for sock in ready:
            if sock in self._listeners:
                self._accept(sock)
            elif sock in self._flows:
                self._read(self._flows[sock], now)

    def _accept(self, listener: socket.socket) -> None:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        number = self._listeners[listener]
        try:
            far = _connect(self._targets[number % self._count])
        except (OSError, KeyError):
            near.close()
            return
        for sock in (near, far):
            sock.setblocking(False)
            if sock.family != getattr(socket, "AF_UNIX", None):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        up, down = self._workers[number % self._count]
        forth: tuple[_Line, _Line | None]
        back: tuple[_Line, _Line | None]
        if self._half:
            forth, back = (up, None), (up, None)
        elif number < self._count:
            client_up, client_down = self._client
            forth, back = (client_up, down), (up, client_down)
        else:  # which worker calls is not known: only the line of the called one is booked
            forth, back = (down, None), (up, None)
        self._flows[near] = _Flow(near, far, *forth)
        self._flows[far] = _Flow(far, near, *back)

    def _read(self, flow: _Flow, now: int) -> None:
        try:
            data = flow.source.recv(self._piece)
        except BlockingIOError:
            return
        except OSError:
            self._drop(flow)
            return
        flow.ended = not data
        flow.held += len(data)
        flow.last_ns = max(flow.last_ns, self._arrival(flow, len(data), now))
        flow.queue.append((flow.last_ns, memoryview(data)))

    def _arrival(self, flow: _Flow, size: int, now: int) -> int:
        """Book the lines for so many bytes; when the last of them will be there."""
        jitter = self._random.randrange(self._jitter_ns + 1) if self._jitter_ns else 0
        if not self._bytes_per_ns:
            return now + self._delay_ns + jitter
        takes = round(size / self._bytes_per_ns)
        flow.up.free_ns = max(now, flow.up.free_ns) + takes
        there = flow.up.free_ns + self._delay_ns + jitter
        if flow.down is not None:
            there = flow.down.free_ns = max(there, flow.down.free_ns + takes)
        return there

    def _deliver(self, flow: _Flow, now: int) -> None:
        while flow.queue and flow.queue[0][0] <= now + _CLOSE_NS:
            due, data = flow.queue[0]
            try:
                if not data:
                    flow.sink.shutdown(socket.SHUT_WR)
                    flow.queue.popleft()
                    flow.done = True
                    break
                sent = flow.sink.send(data)
            except BlockingIOError:
                flow.blocked = True
                return
            except OSError:
                self._drop(flow)
                return
            flow.held -= sent
            if sent < len(data):
                flow.queue[0] = (due, data[sent:])
            else:
                flow.queue.popleft()
        if flow.done and self._flows[flow.sink].done:
            self._drop(flow)

    def _drop(self, flow: _Flow) -> None:
        """Close a connection, both directions."""
        for sock in (flow.source, flow.sink):
            gone = self._flows.pop(sock, None)
            if gone is not None:
                gone.queue.clear()
                gone.blocked = False
                gone.ended = True
            sock.close()


def _connect(target: Address) -> socket.socket:
    if target.name:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(target.name)
        except OSError:
            sock.close()
            raise
        return sock
    return socket.create_connection((target.host, target.port), _CONNECT_S)


def _wake_sharply() -> None:
    """Ask Linux not to round our timers up by its usual 50 us; elsewhere lateness is only learned."""
    try:
        Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")
    except OSError:
        return


def _listen_to_parent(relay: Relay) -> None:
    """Take orders from standard input; its end is ours."""
    for line in sys.stdin:
        number, address = json.loads(line)
        relay.aim(number, address)
        sys.stdout.write("ok\n")
        sys.stdout.flush()
    os._exit(0)


def main(text: str) -> None:
    """Open the doors, say their ports in one line, and relay until standard input ends."""
    wanted = json.loads(text)
    count = int(wanted.pop("count"))
    relay = Relay(LinkShape(**wanted), count)
    _wake_sharply()
    sys.stdout.write(json.dumps(relay.ports) + "\n")
    sys.stdout.flush()
    threading.Thread(target=_listen_to_parent, args=(relay,), daemon=True).start()
    relay.run()


if __name__ == "__main__":
    main(sys.argv[1])
