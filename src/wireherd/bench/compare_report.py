"""Formats of `--compare`: llama-bench's rows of both modes, and what one is to the other.

JSON has one object a test: `compare` (the key), `mode_a` and `mode_b` (its values), `a` and `b` as llama-bench rows,
`ratio`, `ratio_min` and `ratio_max` (b over a in tokens a second: median of the pairs and its interval), `ratios` pair
by pair, and what the interval covers. The other formats have a row for each mode, and the ratio in both.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from wireherd.bench import stats
from wireherd.bench.compare import Both, Comparison, Wanted
from wireherd.bench.report import NOTHING, csv_table, flat, record, sql_table
from wireherd.bench.result import build_number
from wireherd.bench.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def comparison_record(both: Both, found: Comparison) -> dict[str, object]:
    """One test as JSON has it."""
    interval = found.interval
    return {
        "compare": found.wanted.key,
        "mode_a": found.wanted.name_a,
        "mode_b": found.wanted.name_b,
        "test": found.case.name,
        "a": record(both.setup_a, both.settings_a, found.a),
        "b": record(both.setup_b, both.settings_b, found.b),
        "ratio": round(found.ratio, 4),
        "ratio_min": round(interval.low, 4),
        "ratio_max": round(interval.high, 4),
        "interval_covers": round(interval.covers, 4),
        "pairs": len(found.ratios),
        "ratios": [round(ratio, 4) for ratio in found.ratios],
    }


def _rows(both: Both, found: Comparison) -> Iterator[dict[str, str | int | float]]:
    """Both modes for a table of a database."""
    whole = comparison_record(both, found)
    shared = {name: whole[name] for name in ("ratio", "ratio_min", "ratio_max", "interval_covers", "pairs")}
    for row, mode in (("a", found.wanted.name_a), ("b", found.wanted.name_b)):
        values = whole[row]
        if isinstance(values, dict):
            yield flat(values | {"compare": found.wanted.key, "compare_mode": mode} | shared)


def _json_lines(both: Both, found: Iterator[Comparison]) -> Iterator[str]:
    yield "[\n"
    opening = ""
    for each in found:
        body = json.dumps(comparison_record(both, each), indent=2)
        yield opening + "\n".join(f"  {line}" for line in body.splitlines())
        opening = ",\n"
    yield "\n]\n"


def _jsonl_lines(both: Both, found: Iterator[Comparison]) -> Iterator[str]:
    yield ""
    for each in found:
        yield json.dumps(comparison_record(both, each)) + "\n"


def _csv_lines(both: Both, found: Iterator[Comparison]) -> Iterator[str]:
    return csv_table(_columns(both), (_rows(both, each) for each in found))


def _sql_lines(both: Both, found: Iterator[Comparison]) -> Iterator[str]:
    return sql_table("llama_bench_compare", _columns(both), (_rows(both, each) for each in found))


def _columns(both: Both) -> dict[str, object]:
    """Names of all columns, each with a value of its type."""
    nothing = Comparison(Wanted("", "", ""), NOTHING.case, NOTHING, NOTHING, (1.0,))
    return dict(next(_rows(both, nothing)))


def _markdown_lines(both: Both, found: Iterator[Comparison]) -> Iterator[str]:
    """One table: a's row, then b's with the ratio."""
    sides = [(both.setup_a, both.settings_a), (both.setup_b, both.settings_b)]
    wanted = both.wanted
    mode = Column(wanted.key, -max(len(wanted.key), len(wanted.name_a), len(wanted.name_b), 6))
    covers = stats.median_interval([1.0] * both.settings_a.repetitions).covers
    more = (Column("b/a", 6), Column(f"{math.floor(100 * covers)} % interval", 15))
    table = Table(sides, mode=mode, more=more, text=wanted.key == "draft")
    yield table.header()
    for each in found:
        interval = each.interval
        spread = f"{interval.low:.3f} - {interval.high:.3f}"
        yield table.row(each.a, 0, wanted.name_a, ("", "")) + table.row(
            each.b, 1, wanted.name_b, (f"{each.ratio:.3f}", spread)
        )
    builds = dict.fromkeys((both.setup_a.build, both.setup_b.build))
    yield "\nbuild: " + ", ".join(f"{build} ({build_number(build)})" for build in builds) + "\n"


#: as `report.FORMATS`
FORMATS: Final[dict[str, Callable[[Both, Iterator[Comparison]], Iterator[str]]]] = {
    "md": _markdown_lines,
    "csv": _csv_lines,
    "json": _json_lines,
    "jsonl": _jsonl_lines,
    "sql": _sql_lines,
}
