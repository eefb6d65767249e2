"""Two modes against each other in one run: A B, B A, A B ..., each case by itself.

Both stay loaded, so that the two of a pair run within seconds of each other: what drifts over minutes (clocks, caches,
neighbours) hits both alike and falls out of their ratio. What is reported is the median of the pairs' ratios, with the
order-statistics interval of that median, never the ratio of two means.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wireherd.bench import stats
from wireherd.bench.bed import Site
from wireherd.bench.driver import Driver
from wireherd.bench.runner import Runner, now, result
from wireherd.bench.text_runner import TextRunner
from wireherd.errors import UsageError
from wireherd.llm.options import SET_TENSOR, SPLIT_MODES
from wireherd.protocol.kept import MAX_GRAPHS
from wireherd.protocol.version import SUPPORTED, Version
from wireherd.session.options import GRAPH_CACHE_POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wireherd.bench.bed import Bed
    from wireherd.bench.cases import BenchSettings, Case
    from wireherd.bench.result import Result, Setup
    from wireherd.bench.runner import Measured, Sample
    from wireherd.llm.fetch import Progress

#: pairs, unless told otherwise: fewer do not settle a bar
DEFAULT_PAIRS: Final = 9
#: our own extension, among the versions of `protocol=`
_HERD: Final = "herd"
#: the workers that the bench starts, among the lists of `rpc=`
_FRESH: Final = "workers"
_MOST_WORKERS: Final = 64

#: key → a choice of it in words
KEYS: Final = {
    "set-tensor": "sync,async",
    "graph-cache": "0,1024",
    "graph-cache-policy": "reset,lru",
    "protocol": "7.0,herd",
    "split": "layer,tensor",
    "draft": "off,on",
    "workers": "1,2",
    "rpc": "a:50052,b:50052;c:50052,d:50052",
}
_CHOICES: Final = {
    "set-tensor": SET_TENSOR,
    "graph-cache-policy": GRAPH_CACHE_POLICIES,
    "split": SPLIT_MODES,
    "draft": ("off", "on"),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `--compare` asks for: a key and its two values, and what they are called where that says more."""

    key: str
    a: str
    b: str
    names: tuple[str, str] = ("", "")

    @property
    def name_a(self) -> str:
        """What the first mode is called."""
        return self.names[0] or self.a

    @property
    def name_b(self) -> str:
        """What the second mode is called."""
        return self.names[1] or self.b

    @classmethod
    def parse(cls, text: str, names: str | None = None) -> Wanted:
        """Parse KEY=A,B; the lists of `rpc=` are parted by a semicolon. `names` are two with a comma between them.

        Raises:
            UsageError: an unknown key, or values it does not have.
        """
        key, _, rest = text.partition("=")
        if key not in KEYS:
            raise UsageError(f"--compare {text!r}: the key must be one of {', '.join(KEYS)}")
        values = [value.strip() for value in rest.split(";" if key == "rpc" else ",")]
        if len(values) != 2 or not all(values):
            raise UsageError(f"--compare {text!r} names no two modes: write it as {key}={KEYS[key]}")
        for value in values:
            if not _valid(key, value):
                raise UsageError(f"--compare {text!r}: {value!r} is no value of {key}: write it as {key}={KEYS[key]}")
        called = tuple(name.strip() for name in names.split(",")) if names is not None else ("", "")
        if len(called) != 2 or (names is not None and not all(called)):
            raise UsageError(f"--names {names!r} are not two names with a comma between them")
        return cls(key, values[0], values[1], (called[0], called[1]))


def _valid(key: str, value: str) -> bool:
    if key in _CHOICES:
        return value in _CHOICES[key]
    if key == "graph-cache":
        return value.isascii() and value.isdecimal() and int(value) <= MAX_GRAPHS
    if key == "workers":
        return value.isascii() and value.isdecimal() and int(value) <= _MOST_WORKERS
    if key == "protocol" and value != _HERD:
        return Version.parse(value) in SUPPORTED
    return True


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case measured both ways; `ratios` has b over a in tokens a second, pair by pair."""

    wanted: Wanted
    case: Case
    a: Result
    b: Result
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median of the pairs' ratios: above 1, b is faster."""
        return stats.median(self.ratios)

    @property
    def interval(self) -> stats.Interval:
        """Where the true median lies, with a probability of 90 % or what the number of pairs allows."""
        return stats.median_interval(self.ratios)


@dataclass(frozen=True, slots=True)
class Side:
    """One side before it is opened: its settings but for the endpoints, where its workers are, who drives them."""

    settings: BenchSettings
    site: Site
    driver: str = ""


def sides(
    wanted: Wanted, settings: BenchSettings, site: Site, drivers: tuple[str, str] = ("", "")
) -> tuple[Side, Side]:
    """What the two modes are, out of the settings they share.

    Raises:
        UsageError: the key makes no sense with them.
    """
    if wanted.key != "rpc" and wanted.a == wanted.b and drivers[0] == drivers[1]:
        raise UsageError(f"--compare {wanted.key}={wanted.a},{wanted.b} compares a mode with itself")
    if settings.llama.draft is not None and wanted.key != "draft":
        raise UsageError("drafts are compared with --compare draft=off,on: leave out -md and --lookup")
    if wanted.key == "draft" and any(drivers):
        raise UsageError("--compare draft=off,on drives our own client: leave out --driver-a and --driver-b")
    first, second = (_side(wanted, value, settings, site) for value in (wanted.a, wanted.b))
    return replace(first, driver=drivers[0]), replace(second, driver=drivers[1])


def _side(wanted: Wanted, value: str, settings: BenchSettings, site: Site) -> Side:
    key, llama = wanted.key, settings.llama
    if key == "protocol":
        if not site.fresh:
            raise UsageError("--compare protocol=... needs --workers N: each version has workers of its own")
        plain = value != _HERD
        return Side(settings, replace(site, plain=plain, protocol=Version.parse(value) if plain else site.protocol))
    if key == "workers":
        return Side(settings, replace(site, endpoints=(), fresh=int(value)))
    if key == "rpc":
        if value == _FRESH and not site.fresh:
            raise UsageError("--compare rpc=...;workers needs --workers N")
        return Side(settings, site if value == _FRESH else Site(tuple(word.strip() for word in value.split(","))))
    if key == "draft":
        if llama.draft is None:
            raise UsageError("--compare draft=off,on needs a way to draft: give -md FILE or --lookup")
        return Side(settings, site)
    changes: dict[str, dict[str, Any]] = {
        "set-tensor": {"set_tensor": value},
        "graph-cache": {"graph_cache": int(value) if key == "graph-cache" else 0},
        "graph-cache-policy": {"graph_cache_policy": value},
        "split": {"split_mode": value},
    }
    if not site.fresh and not site.endpoints:
        raise UsageError(f"--compare {key}=... is about workers: give --workers N or --rpc")
    return Side(replace(settings, llama=replace(llama, **changes[key])), site)


class Both(NamedTuple):
    """What the two sides are called, and what they are measured on and with."""

    wanted: Wanted
    setup_a: Setup
    settings_a: BenchSettings
    setup_b: Setup
    settings_b: BenchSettings


class Comparer:
    """Both sides, opened. Close it, or use it as a context manager."""

    def __init__(
        self, wanted: Wanted, pair: tuple[Side, Side], bed: Bed, progress: Progress | None = None, prompt: str = ""
    ) -> None:
        """Start workers and load the models.

        Args:
            wanted: what the modes are called.
            pair: from `sides`.
            bed: where the workers are.
            progress: told of the loading.
            prompt: text that `draft=` generates behind.

        Raises:
            UsageError, ModelError, WorkerError, NativeError, DriverError: a side cannot be opened.
        """
        self.wanted = wanted
        self._stack = contextlib.ExitStack()
        try:
            self.a, self.b = self._open(pair, bed, progress, prompt)
        except BaseException:
            self.close()
            raise

    def _open(
        self, pair: tuple[Side, Side], bed: Bed, progress: Progress | None, prompt: str
    ) -> tuple[Measured, Measured]:
        settings = [_placed(side, bed) for side in pair]
        if self.wanted.key == "draft":
            runner = self._stack.enter_context(Runner(settings[0], progress, text=prompt))
            return TextRunner(runner, prompt, self.wanted.a == "on"), TextRunner(runner, prompt, self.wanted.b == "on")
        first, second = (self._driven(side, each, progress) for side, each in zip(pair, settings, strict=True))
        return first, second

    def _driven(self, side: Side, settings: BenchSettings, progress: Progress | None) -> Measured:
        if side.driver:
            return self._stack.enter_context(Driver(side.driver, settings))
        return self._stack.enter_context(Runner(settings, progress))

    def both(self) -> Both:
        """What is compared, for the formats."""
        a, b = self.a.setup(), self.b.setup()
        return Both(self.wanted, _completed(a, b), self.a.settings, _completed(b, a), self.b.settings)

    def comparisons(self, tell: Callable[[str], object] = lambda _: None) -> Iterator[Comparison]:
        """Run all cases, pair by pair.

        Args:
            tell: called with a line about each run before it begins.

        Raises:
            WorkerError, GgmlFailed, DriverError: a side failed.
        """
        settings = self.a.settings
        cases = settings.cases()
        for number, case in enumerate(cases, 1):
            if number > 1:
                time.sleep(settings.delay_s)
            label = f"test {number}/{len(cases)}, {case.name}"
            yield self._compare(case, settings, label, tell)

    def _compare(self, case: Case, settings: BenchSettings, label: str, tell: Callable[[str], object]) -> Comparison:
        names = (self.wanted.name_a, self.wanted.name_b)
        both = (self.a, self.b)
        if settings.warm_up:
            for side, name in zip(both, names, strict=True):
                tell(f"{label}: warm-up of {name}")
                side.warm_up(case)
        began = now()
        samples: tuple[list[Sample], list[Sample]] = ([], [])
        for pair in range(settings.repetitions):
            for which in (0, 1) if pair % 2 == 0 else (1, 0):
                tell(f"{label}: pair {pair + 1}/{settings.repetitions}, {names[which]}")
                samples[which].append(both[which].run(case))
        ratios = tuple(a.ns / b.ns for a, b in zip(*samples, strict=True))
        return Comparison(self.wanted, case, result(case, samples[0], began), result(case, samples[1], began), ratios)

    def close(self) -> None:
        """Free the models and end the programs; the bed is another's."""
        self._stack.close()

    def __enter__(self) -> Comparer:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _placed(side: Side, bed: Bed) -> BenchSettings:
    endpoints: Sequence[str] = bed.stand(side.site)
    return replace(side.settings, llama=replace(side.settings.llama, rpc=endpoints))


def _completed(setup: Setup, other: Setup) -> Setup:
    """What a driver did not tell of model and machine, the other side knows: they are the same."""
    names = ("cpu", "model_type", "model_size", "model_n_params")
    return replace(setup, **{name: getattr(setup, name) or getattr(other, name) for name in names})
