"""The session processes the supervisor keeps: some warm and waiting, the rest each serving one client.

A fresh session costs a few tenths of a second (interpreter, numpy, ggml), so one is always ready, and the next is
started the moment it is taken. When several clients come at once they wait in line, first come first served, while as
many processes start as the machine has cores for.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import UsageError, WireherdError
from wireherd.obs.log import get_logger
from wireherd.worker.channel import Kind, Message
from wireherd.worker.child import Child, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.worker.budget import Budget
    from wireherd.worker.settings import WorkerSettings

log = get_logger(__name__)

_FIRST_BACKOFF_S: Final = 0.25
_LAST_BACKOFF_S: Final = 10.0
#: how long a session waits for memory that another one may be about to give back
_MEMORY_WAIT_S: Final = 1.0


class StartError(WireherdError):
    """A process of the worker could not start, so neither can the worker."""


class Keeper:
    """Starts processes of one role and keeps a wanted number of them alive, with a pause when they die at birth."""

    def __init__(self, role: Role, settings: WorkerSettings) -> None:
        self.role = role
        self.settings = settings
        self.children: set[Child] = set()
        self.started: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._backoff_s = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def starting(self) -> int:
        """Processes that are not ready yet."""
        return sum(child.info is None for child in self.children)

    def refill(self) -> None:
        """Start what is missing."""
        if self._closing or self._retry is not None:
            return
        for _ in range(self.missing()):
            try:
                child = Child(
                    self.role,
                    self.settings,
                    on_ready=self._ready,
                    on_message=self.received,
                    on_exit=self._exited,
                )
            except OSError as error:
                log.warning("cannot start another process: %s", error)
                self._pause()
                return
            self.children.add(child)

    def missing(self) -> int:
        """How many processes should be started now."""
        raise NotImplementedError

    def ready(self, child: Child) -> None:
        """A process is ready to work."""
        raise NotImplementedError

    def received(self, child: Child, message: Message) -> None:
        """A process sent a message."""
        raise NotImplementedError

    def exited(self, child: Child) -> None:
        """A process that had been ready is gone."""
        raise NotImplementedError

    def _ready(self, child: Child) -> None:
        self._backoff_s = 0.0
        if not self.started.done():
            self.started.set_result(child.info or {})
        log.debug("%s process %d is ready (pid %d)", self.role.name.lower(), child.number, child.pid)
        self.ready(child)
        self.refill()

    def _exited(self, child: Child) -> None:
        self.children.discard(child)
        if child.info is not None:
            self.exited(child)
        elif not self.started.done():
            exit_code, reason = child.failure or (1, f"a process of the worker could not start: {child.reason()}")
            usage = exit_code == UsageError.exit_code
            self.started.set_exception(UsageError(reason) if usage else StartError(reason))
            return
        else:
            log.error("%s process %d could not start: %s", self.role.name.lower(), child.number, child.reason())
            self._pause()
        self.refill()

    def _pause(self) -> None:
        self._backoff_s = min(max(2 * self._backoff_s, _FIRST_BACKOFF_S), _LAST_BACKOFF_S)
        self._retry = asyncio.get_running_loop().call_later(self._backoff_s, self._resume)

    def _resume(self) -> None:
        self._retry = None
        self.refill()

    async def close(self, grace_s: float) -> None:
        """End all processes; returns when they are gone."""
        self._closing = True
        if self._retry is not None:
            self._retry.cancel()
        if self.started.done() and not self.started.cancelled():
            self.started.exception()  # so that asyncio does not complain that nobody looked at it
        await asyncio.gather(*(child.close(grace_s) for child in self.children))
        self.children.clear()


@dataclass(slots=True, eq=False)
class _Wish:
    """Memory that a session asked for and has no answer about yet."""

    child: Child
    size: int
    late: bool = False


class SessionPool(Keeper):
    """The sessions. `on_end(child)` is called when a session that was taken is gone."""

    def __init__(self, settings: WorkerSettings, budget: Budget, on_end: Callable[[Child], None]) -> None:
        super().__init__(Role.SESSION, settings)
        self._budget = budget
        self._on_end = on_end
        self._idle: deque[Child] = deque()
        self._waiting: deque[asyncio.Future[Child]] = deque()
        self._taken: set[Child] = set()
        self._wanting: deque[_Wish] = deque()
        self._cores = max(2, os.cpu_count() or 1)

    def missing(self) -> int:
        """As many as are wanted warm or waited for, within the limits on sessions and on starts at a time."""
        starting = self.starting
        wanted = self.settings.prewarmed + len(self._waiting) - len(self._idle) - starting
        room = self.settings.max_sessions + self.settings.prewarmed - len(self.children)
        return max(0, min(wanted, room, self._cores - starting))

    async def take(self) -> Child:
        """A warm process for one client; waits while none is ready. Cancel it to give up the place in line."""
        while self._idle and len(self._taken) < self.settings.max_sessions:
            child = self._idle.popleft()
            if child in self.children:
                return self._give(child)
        future: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.refill()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._taken.discard(future.result())
                self.ready(future.result())
            elif future in self._waiting:
                self._waiting.remove(future)
            raise

    def _give(self, child: Child) -> Child:
        self._taken.add(child)
        self.refill()
        return child

    def ready(self, child: Child) -> None:
        """Give a warm process to the first client in line, or keep it."""
        self._idle.append(child)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._idle and self._waiting and len(self._taken) < self.settings.max_sessions:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._give(self._idle.popleft()))

    def received(self, child: Child, message: Message) -> None:
        """Answer a session that wants memory, or take some back."""
        if message.kind is Kind.RESERVE:
            wish = _Wish(child, message.number)
            self._wanting.append(wish)
            self._grant()
            asyncio.get_running_loop().call_later(_MEMORY_WAIT_S, self._late, wish)
        elif message.kind is Kind.SHARE:
            child.send(Message(Kind.GRANT, number=self._budget.free or 0))
        elif message.kind is Kind.RELEASE:
            self._budget.release(child, message.number)
            self._grant()

    def _grant(self) -> None:
        """Answer who waits for memory. A client that just left frees its share only when its process is gone."""
        for wish in list(self._wanting):
            child, size = wish.child, wish.size
            hopeless = len(self._taken) <= 1 or (self._budget.limit is not None and size > self._budget.limit)
            if child not in self.children:
                self._wanting.remove(wish)
            elif self._budget.reserve(child, size):
                self._wanting.remove(wish)
                child.send(Message(Kind.GRANT, number=1))
            elif hopeless or wish.late:
                self._wanting.remove(wish)
                child.send(Message(Kind.GRANT, number=0))

    def _late(self, wish: _Wish) -> None:
        # said, not read off the clock: where that is coarse, a timer runs a little before its time
        wish.late = True
        self._grant()

    def exited(self, child: Child) -> None:
        """Take back what a dead session held."""
        self._budget.drop(child)
        self._grant()
        if child in self._idle:
            self._idle.remove(child)
            log.warning("warm session %d was lost: %s", child.number, child.reason())
        if child in self._taken:
            self._taken.discard(child)
            self._on_end(child)
        self._serve_waiting()
