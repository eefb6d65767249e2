"""A TCP proxy that damages connections on command: cuts, stalls, slows and delays them.

One thread moves all bytes, so that a command takes effect between two bytes and for every connection at once.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from wireherd.transport import Address

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_CHUNK: Final = 1 << 16
#: bytes that one direction of a connection holds when nothing slows it
_HELD: Final = 1 << 18
_LONGEST_WAIT_S: Final = 0.2
#: at a limited rate, at most this long a burst
_BURST_S: Final = 0.01


class _Flow:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.queue: deque[tuple[float, memoryview]] = deque()  # when it may leave, what
        self.held = 0
        self.ended = False
        self.allowance = 0.0


class FaultProxy:
    """Forwards connections to `target`, faithfully until told otherwise. Use it in a `with` statement.

    Attributes:
        address: where to connect instead of the target.
        accepted: connections accepted so far.
        forwarded: bytes forwarded towards the target so far.
    """

    def __init__(self, target: Address | str) -> None:
        parsed = Address.parse(target) if isinstance(target, str) else target
        self._target = (parsed.host, parsed.port)
        self._listener: socket.socket | None = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self.forwarded = 0
        self._lock = threading.Lock()
        self._pairs: list[tuple[_Flow, _Flow]] = []
        self._stalled = False
        self._rate: float | None = None
        self._delay_s = 0.0
        self._cut_at: int | None = None
        self._closed = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._thread.start()

    def cut(self, *, reset: bool = False) -> None:
        """Close every connection now, what is on the way is lost; with `reset` both ends get a reset."""
        with self._lock:
            self._cut(reset)
        self._notify()

    def cut_after(self, size: int) -> None:
        """Cut everything when `size` more bytes have been forwarded towards the target."""
        with self._lock:
            self._cut_at = self.forwarded + size

    def stall(self) -> None:
        """Forward nothing any more, in either direction, and keep the connections open."""
        with self._lock:
            self._stalled = True
        self._notify()

    def resume(self) -> None:
        """Forward again after `stall`."""
        with self._lock:
            self._stalled = False
        self._notify()

    def slow(self, bytes_per_s: float | None) -> None:
        """Limit each direction of each connection; None lifts the limit."""
        with self._lock:
            self._rate = bytes_per_s
        self._notify()

    def delay(self, seconds: float) -> None:
        """Deliver what comes from now on this much later, in each direction."""
        with self._lock:
            self._delay_s = seconds

    def refuse(self) -> None:
        """Stop accepting; connections that exist live on."""
        with self._lock:
            self._stop_accepting()

    def close(self) -> None:
        """Cut everything and end the thread."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            self._stop_accepting()
            self._cut(reset=False)
        self._notify()
        self._thread.join(5.0)
        self._wake.close()
        self._woken.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _notify(self) -> None:
        self._wake.send(b"x")

    def _stop_accepting(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _cut(self, reset: bool) -> None:
        for pair in self._pairs:
            self._close_pair(pair, reset)
        self._pairs.clear()

    @staticmethod
    def _close_pair(pair: tuple[_Flow, _Flow], reset: bool) -> None:
        for flow in pair:
            if reset and flow.source.fileno() >= 0:
                flow.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            flow.source.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed.is_set():
                    return
                selector, wait_s = self._interests(time.monotonic())
            with selector:
                ready: set[object] = {key.fileobj for key, events in selector.select(wait_s) if events}
            with self._lock:
                if self._closed.is_set():
                    return
                self._step(ready)

    def _interests(self, now: float) -> tuple[selectors.BaseSelector, float]:
        """What to wait for, and for how long at most."""
        wanted: dict[socket.socket, int] = {self._woken: selectors.EVENT_READ}
        if self._listener is not None:
            wanted[self._listener] = selectors.EVENT_READ
        wait_s = _LONGEST_WAIT_S
        if not self._stalled:
            for flow in (flow for pair in self._pairs for flow in pair):
                if not flow.ended and flow.held < self._room():
                    wanted[flow.source] = wanted.get(flow.source, 0) | selectors.EVENT_READ
                if flow.queue:
                    if flow.queue[0][0] > now:
                        wait_s = min(wait_s, flow.queue[0][0] - now)
                    elif self._rate is not None and flow.allowance < 1:
                        wait_s = min(wait_s, _BURST_S / 2)
                    else:
                        wanted[flow.sink] = wanted.get(flow.sink, 0) | selectors.EVENT_WRITE
        selector = selectors.DefaultSelector()
        for sock, events in wanted.items():
            selector.register(sock, events)
        return selector, wait_s

    def _room(self) -> float:
        """Bytes a direction may hold: what the delay needs, little at a limited rate."""
        if self._rate is not None:
            return max(self._rate * (self._delay_s + _BURST_S), 1.0)
        return float("inf") if self._delay_s else float(_HELD)

    def _step(self, ready: set[object]) -> None:
        if self._woken in ready:
            self._woken.recv(4096)
        if self._listener is not None and self._listener in ready:
            self._accept(self._listener)
        now = time.monotonic()
        passed, self._last = now - self._last, now
        for pair in list(self._pairs):
            if self._stalled or pair not in self._pairs:
                continue
            try:
                for flow in pair:
                    if self._rate is not None:
                        flow.allowance = min(flow.allowance + passed * self._rate, max(self._rate * _BURST_S, 1.0))
                    if flow.source in ready and not flow.ended:
                        self._read(flow, now)
                    self._write(flow, now, towards_target=flow is pair[0])
            except OSError:
                if pair in self._pairs:
                    self._pairs.remove(pair)
                self._close_pair(pair, reset=True)
                continue
            if pair in self._pairs and all(flow.ended and not flow.queue for flow in pair):
                self._pairs.remove(pair)
                self._close_pair(pair, reset=False)

    def _accept(self, listener: socket.socket) -> None:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        self.accepted += 1
        try:
            far = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            near.close()
            return
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.append((_Flow(near, far), _Flow(far, near)))

    def _read(self, flow: _Flow, now: float) -> None:
        try:
            data = flow.source.recv(_CHUNK)
        except BlockingIOError:
            return
        flow.ended = not data
        flow.queue.append((now + self._delay_s, memoryview(data)))
        flow.held += len(data)

    def _write(self, flow: _Flow, now: float, *, towards_target: bool) -> None:
        while flow.queue and flow.queue[0][0] <= now:
            data = flow.queue[0][1]
            if not data:  # the end, in its turn
                flow.queue.popleft()
                flow.sink.shutdown(socket.SHUT_WR)
                return
            size = len(data)
            if self._rate is not None:
                size = min(size, int(flow.allowance))
            if towards_target and self._cut_at is not None:
                size = min(size, self._cut_at - self.forwarded)
            try:
                sent = flow.sink.send(data[:size]) if size > 0 else 0
            except BlockingIOError:
                return
            flow.held -= sent
            flow.allowance -= sent
            if sent < len(data):
                flow.queue[0] = (flow.queue[0][0], data[sent:])
            else:
                flow.queue.popleft()
            if towards_target:
                self.forwarded += sent
                if self._cut_at is not None and self.forwarded >= self._cut_at:
                    self._cut_at = None
                    self._cut(reset=False)
                    return
            if not sent:
                return
