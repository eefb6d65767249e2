"""Where a token's wall time goes on the client: waiting on sockets, our Python, libllama.

Theory of operation: while the profile is on, `vtable.callback_of` hands out callbacks that keep time, so the slots of
the backend are measured from inside the wall; the two calls into libllama that a token needs are timed as well.

    total = driver (Python around the calls) + native
    native = callbacks + libllama (its graph building and what the local CPU computes)
    callbacks = waiting on sockets + our Python in them

What counts as our overhead is the driver and the Python in the callbacks. These are wall times: where workers share
the machine's cores with the client, they hold the time in which a worker ran in its place, so the processor time of the
client's thread stands beside them. Keeping time costs about a microsecond a callback, which is in the overhead.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from wireherd.errors import UsageError
from wireherd.ggml import vtable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wireherd.bench.cases import BenchSettings
    from wireherd.bench.runner import Runner
    from wireherd.llm.session import LlmSession

_MS: Final = 1e-6
#: tokens before the measured ones: the first graphs are built and sent
_WARM_UP: Final = 8


@dataclass(slots=True)
class Slot:
    """One callback: how often it was called and how long it took, nanoseconds; what it calls is counted once."""

    calls: int = 0
    total_ns: int = 0


@dataclass(slots=True)
class Clock:
    """Time spent in callbacks; nested ones count for themselves, and only the outermost for the total."""

    slots: dict[str, Slot] = field(default_factory=dict)
    total_ns: int = 0
    depth: int = 0

    def timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a slot's method."""
        slot = self.slots.setdefault(name, Slot())
        now = time.perf_counter_ns

        def keep_time(*arguments: Any) -> Any:
            self.depth += 1
            start = now()
            try:
                return method(*arguments)
            finally:
                spent = now() - start
                self.depth -= 1
                slot.calls += 1
                slot.total_ns += spent
                if not self.depth:
                    self.total_ns += spent

        return keep_time

    def clear(self) -> None:
        """Forget what was counted."""
        for slot in self.slots.values():
            slot.calls = slot.total_ns = 0
        self.total_ns = 0


@contextlib.contextmanager
def timed_callbacks() -> Iterator[Clock]:
    """Make every callback that is bound inside the `with` keep time, for as long as it lives."""
    clock = Clock()
    original = vtable.callback_of

    def timing(kind: Any, method: Callable[..., Any], *, slot: str, **rest: Any) -> Any:
        return original(kind, clock.timed(slot, method), slot=slot, **rest)

    vtable.callback_of = timing
    try:
        yield clock
    finally:
        vtable.callback_of = original


@dataclass(frozen=True, slots=True)
class Profile:
    """Milliseconds a token; `slots` has name, calls a token and milliseconds a token of each callback."""

    tokens: int
    total_ms: float
    native_ms: float
    callbacks_ms: float
    waiting_ms: float
    processor_ms: float
    round_trips: float
    slots: tuple[tuple[str, float, float], ...]

    @property
    def python_ms(self) -> float:
        """Our Python in the callbacks."""
        return self.callbacks_ms - self.waiting_ms

    @property
    def driver_ms(self) -> float:
        """Our Python around the calls into libllama."""
        return self.total_ms - self.native_ms

    @property
    def libllama_ms(self) -> float:
        """What libllama takes itself, and what this machine computes."""
        return self.native_ms - self.callbacks_ms

    @property
    def overhead_ms(self) -> float:
        """What we add beyond computing and waiting."""
        return self.python_ms + self.driver_ms

    def lines(self) -> Iterator[str]:
        """The profile as text."""
        yield f"per token, {self.tokens} tokens, milliseconds\n"
        for name, value in (
            ("total", self.total_ms),
            ("waiting on sockets", self.waiting_ms),
            ("libllama and local compute", self.libllama_ms),
            ("Python callbacks, without waiting", self.python_ms),
            ("Python driver", self.driver_ms),
            ("client overhead (callbacks + driver)", self.overhead_ms),
            ("processor time of this thread, in all", self.processor_ms),
        ):
            yield f"  {name:<40}{value:>9.3f}\n"
        yield f"  {'round trips':<40}{self.round_trips:>9.2f}\n"
        if not self.slots:  # nothing left this machine
            return
        yield f"\n  {'callback':<30}{'calls':>8}{'ms':>9}   (waiting included)\n"
        for name, calls, spent in self.slots:
            yield f"  {name:<30}{calls:>8.2f}{spent:>9.3f}\n"


def roomy(settings: BenchSettings) -> BenchSettings:
    """The same settings for the profile: generated tokens only, with room for those before them.

    Raises:
        UsageError: no tokens are to be generated.
    """
    counts = tuple(count + _WARM_UP for count in settings.generated if count)
    if not counts:
        raise UsageError("--profile looks at generated tokens: give -n a number above zero")
    return replace(settings, prompts=(), generated=counts, pairs=(), depths=(0,))


def profile(runner: Runner, clock: Clock, tokens: int) -> Profile:
    """Generate random tokens on an empty context and account for their time.

    Args:
        runner: opened inside `timed_callbacks`.
        clock: what that gave.
        tokens: how many tokens to measure; the context must hold them and a few more.

    Raises:
        WorkerError, GgmlFailed: see `Runner.run`.
    """
    session = runner.session
    session.reset()
    drawn = runner.tokens(tokens + _WARM_UP)
    for token in drawn[:_WARM_UP]:
        session.decode([token])
        session.synchronize()
    native = _Native(session.context)
    before = _waits(session)
    clock.clear()
    with native:
        processor = time.thread_time_ns()
        start = time.perf_counter_ns()
        for token in drawn[_WARM_UP:]:
            session.decode([token])
            session.synchronize()
        total = time.perf_counter_ns() - start
        processor = time.thread_time_ns() - processor
    after = _waits(session)
    rows = sorted(clock.slots.items(), key=lambda row: -row[1].total_ns)
    return Profile(
        tokens=tokens,
        total_ms=total * _MS / tokens,
        native_ms=native.total_ns * _MS / tokens,
        callbacks_ms=clock.total_ns * _MS / tokens,
        processor_ms=processor * _MS / tokens,
        waiting_ms=1000 * (after[0] - before[0]) / tokens,
        round_trips=(after[1] - before[1]) / tokens,
        slots=tuple((name, row.calls / tokens, row.total_ns * _MS / tokens) for name, row in rows if row.calls),
    )


class _Native:
    """Times the calls into libllama of one context."""

    def __init__(self, context: Any) -> None:
        self.total_ns = 0
        self._context = context

    def __enter__(self) -> None:
        for name in ("decode", "synchronize"):
            setattr(self._context, name, self._timed(getattr(self._context, name)))

    def __exit__(self, *_: object) -> None:
        for name in ("decode", "synchronize"):
            delattr(self._context, name)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        now = time.perf_counter_ns

        def keep_time(*arguments: Any) -> Any:
            start = now()
            try:
                return method(*arguments)
            finally:
                self.total_ns += now() - start

        return keep_time


def _waits(session: LlmSession) -> tuple[float, int]:
    """Seconds waited on sockets and round trips so far, over all workers."""
    if session.cluster is None:
        return 0.0, 0
    stats = [endpoint.session.stats for endpoint in session.cluster.endpoints]
    return sum(each.wait_s for each in stats), sum(each.round_trips for each in stats)
