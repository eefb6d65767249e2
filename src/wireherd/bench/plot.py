"""Draw results: bars of tokens a second with their spread, or the ratios of a comparison with their intervals.

matplotlib draws, and is asked for only here: `pip install 'wireherd[plot]'`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final

from wireherd.bench import stats
from wireherd.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from wireherd.bench.compare import Comparison
    from wireherd.bench.result import Result

#: what matplotlib's drawing backend without a screen writes
_SUFFIXES: Final = (".png", ".svg", ".pdf")
_BAR_INCHES: Final = 0.45
_WIDTH_INCHES: Final = 8.0
_DPI: Final = 150


def check(path: Path) -> None:
    """Refuse a file that cannot be drawn, before anything is measured.

    Raises:
        UsageError: no matplotlib, no such folder, or another kind of file.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'wireherd[plot]'")
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--plot writes {', '.join(_SUFFIXES)}, not {path.name}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.absolute().parent}")


def plot_results(path: Path, title: str, results: Sequence[Result]) -> None:
    """Draw a bar for each case: mean tokens a second, and one standard deviation to both sides.

    Raises:
        UsageError: the file cannot be written.
    """
    figure, axes = _figure(len(results))
    rates = [result.samples_ts for result in results]
    axes.barh(
        [result.case.name for result in results],
        [stats.mean(rate) for rate in rates],
        xerr=[stats.deviation(rate) for rate in rates],
        capsize=4,
    )
    axes.set_xlabel("tokens a second: mean, one standard deviation")
    _finish(path, title, figure, axes)


def plot_comparisons(path: Path, title: str, found: Sequence[Comparison]) -> None:
    """Draw a bar for each case: median of the pair ratios with its interval, and each pair as a dot.

    Raises:
        UsageError: the file cannot be written.
    """
    figure, axes = _figure(len(found))
    names = [each.case.name for each in found]
    ratios, intervals = [each.ratio for each in found], [each.interval for each in found]
    reach = (
        [ratio - interval.low for ratio, interval in zip(ratios, intervals, strict=True)],
        [interval.high - ratio for ratio, interval in zip(ratios, intervals, strict=True)],
    )
    axes.barh(names, ratios, xerr=reach, capsize=4)
    for name, each in zip(names, found, strict=True):
        axes.plot(each.ratios, [name] * len(each.ratios), ".", color="black", alpha=0.4)
    axes.axvline(1.0, color="black", linewidth=0.8)
    wanted = found[0].wanted if found else None
    what = f"{wanted.name_b} over {wanted.name_a}" if wanted else "ratio"
    axes.set_xlabel(f"tokens a second, {what}: median of the pairs, its interval, all pairs")
    _finish(path, title, figure, axes)


def _figure(bars: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra; without pyplot no screen is looked for)

    figure = Figure(figsize=(_WIDTH_INCHES, 1.5 + _BAR_INCHES * max(bars, 1)), layout="constrained")
    return figure, figure.subplots()


def _finish(path: Path, title: str, figure: Any, axes: Any) -> None:
    axes.set_title(title, fontsize="medium", wrap=True)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    try:
        figure.savefig(path, dpi=_DPI)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
