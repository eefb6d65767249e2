"""llama-bench's formats: a Markdown table, JSON, JSON lines, CSV and SQL.

Keys, their order and their types are those of tools/llama-bench/llama-bench.cpp (`test::get_fields`,
`get_field_type`, `markdown_printer`), so that what reads its output reads ours. Own keys stand after them.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Final

from wireherd.bench import stats
from wireherd.bench.cases import Case
from wireherd.bench.result import FLASH, TEXT_KEYS, Result, Setup, build_number, split_text
from wireherd.bench.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from wireherd.bench.cases import BenchSettings

#: stands in where only a record's keys and types matter
NOTHING: Final = Result(Case(n_gen=1), (1,), "")
_SQL_TYPES: Final = {str: "TEXT", int: "INTEGER", float: "REAL"}


def record(setup: Setup, settings: BenchSettings, result: Result) -> dict[str, object]:
    """One element of the JSON array."""
    llama, samples_ts = settings.llama, result.samples_ts
    return {
        "build_commit": setup.build,
        "build_number": build_number(setup.build),
        "cpu_info": setup.cpu,
        "gpu_info": "",
        "backends": setup.backend,
        "model_filename": str(llama.model),
        "model_type": setup.model_type,
        "model_size": setup.model_size,
        "model_n_params": setup.model_n_params,
        "n_batch": llama.n_batch,
        "n_ubatch": llama.n_ubatch,
        "n_threads": setup.threads,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 50,
        "type_k": llama.type_k,
        "type_v": llama.type_v,
        "n_gpu_layers": llama.n_gpu_layers,
        "n_cpu_moe": llama.n_cpu_moe,
        "split_mode": llama.split_mode,
        "main_gpu": llama.main_gpu,
        "no_kv_offload": False,
        "flash_attn": FLASH[llama.flash_attn],
        "devices": "auto" if llama.devices is None else "/".join(llama.devices) or "none",
        "tensor_split": split_text(llama.tensor_split),
        "tensor_buft_overrides": ";".join(llama.override_rules) or "none",
        "use_mmap": llama.mmap,
        "use_direct_io": False,
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "repack": llama.repack,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": result.case.n_prompt,
        "n_gen": result.case.n_gen,
        "n_depth": result.case.n_depth,
        "test_time": result.test_time,
        "avg_ns": round(stats.mean(result.samples_ns)),
        "stddev_ns": round(stats.deviation(result.samples_ns)),
        "avg_ts": round(stats.mean(samples_ts), 6),
        "stddev_ts": round(stats.deviation(samples_ts), 6),
        "samples_ns": list(result.samples_ns),
        "samples_ts": [round(rate, 4) for rate in samples_ts],
        "rpc": list(llama.rpc),
        "link": settings.link,
        "set_tensor": llama.set_tensor,
        "graph_cache": llama.graph_cache,
        "graph_cache_policy": llama.graph_cache_policy,
        **result.traffic.record(result.tokens),
        **{TEXT_KEYS[name]: round(result.text.get(name, 0.0), 4) for name in TEXT_KEYS},
    }


def json_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """Pieces of the JSON array, each as soon as its case is measured."""
    yield "[\n"
    opening = ""
    for result in results:
        fields = record(setup, settings, result).items()
        body = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in fields)
        yield f"{opening}  {{\n{body}\n  }}"
        opening = ",\n"
    yield "\n]\n"


def jsonl_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """One JSON object a line."""
    yield ""
    for result in results:
        yield json.dumps(record(setup, settings, result)) + "\n"


def flat(row: Mapping[str, object]) -> dict[str, str | int | float]:
    """A record for a table of a database: no samples, lists joined, truth as 1 and 0, as llama-bench has it."""
    found: dict[str, str | int | float] = {}
    for key, value in row.items():
        if isinstance(value, list):
            if not key.startswith("samples_"):
                found[key] = ",".join(map(str, value))
        elif value is None:
            found[key] = ""
        else:
            found[key] = value if isinstance(value, float) else int(value) if isinstance(value, int) else str(value)
    return found


def csv_table(columns: Mapping[str, object], groups: Iterator[Iterable[Mapping[str, object]]]) -> Iterator[str]:
    """A CSV file: its header, then a piece for each group of rows."""
    yield ",".join(columns) + "\n"
    for rows in groups:
        text = io.StringIO()
        writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows(row.values() for row in rows)
        yield text.getvalue()


def sql_table(
    name: str, columns: Mapping[str, object], groups: Iterator[Iterable[Mapping[str, object]]]
) -> Iterator[str]:
    """Statements for sqlite3: the table if it is not there yet, then a piece for each group of rows."""
    types = ",\n".join(f"  {key} {_SQL_TYPES[type(value)]}" for key, value in columns.items())
    yield f"CREATE TABLE IF NOT EXISTS {name} (\n{types}\n);\n\n"
    for rows in groups:
        piece = ""
        for row in rows:
            values = (str(value).replace("'", "''") for value in row.values())
            quoted = ", ".join(f"'{value}'" for value in values)
            piece += f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({quoted});\n"  # noqa: S608  text for sqlite3, with quotes doubled
        yield piece


def csv_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """Rows of a CSV file, its header first."""
    columns = flat(record(setup, settings, NOTHING))
    return csv_table(columns, ((flat(record(setup, settings, each)),) for each in results))


def sql_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """Statements for sqlite3: the table if it is not there yet, and a row for each case."""
    columns = flat(record(setup, settings, NOTHING))
    return sql_table("llama_bench", columns, ((flat(record(setup, settings, each)),) for each in results))


def markdown_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """Lines of the Markdown table, each as soon as its case is measured, and the build below it."""
    table = Table([(setup, settings)], text=settings.llama.draft is not None)
    yield table.header()
    for result in results:
        yield table.row(result)
    yield f"\nbuild: {setup.build} ({build_number(setup.build)})\n"


#: each gives one piece before the cases, one for each case, and at most one after them
FORMATS: Final[dict[str, Callable[[Setup, BenchSettings, Iterator[Result]], Iterator[str]]]] = {
    "md": markdown_lines,
    "csv": csv_lines,
    "json": json_lines,
    "jsonl": jsonl_lines,
    "sql": sql_lines,
}
