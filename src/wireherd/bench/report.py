"""llama-bench's formats: a Markdown table, JSON, JSON lines, CSV and SQL.

Keys, their order and their types are those of tools/llama-bench/llama-bench.cpp (`test::get_fields`,
`get_field_type`, `markdown_printer`), so that what reads its output reads ours. Own keys stand after them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from wireherd.bench import stats
from wireherd.bench.cases import Case
from wireherd.llm.options import LlamaOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wireherd.bench.cases import BenchSettings

#: llama-bench prints a bool; "auto" is -1, as in `enum llama_flash_attn_type`
_FLASH: Final[dict[str, bool | int]] = {"on": True, "off": False, "auto": -1}
_GIB: Final = 1024**3
_BILLION: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Setup:
    """What was measured on: facts that are the same for every case of a run.

    Attributes:
        build: name of the native library's build.
        cpu: what this machine's processor calls itself.
        backend: "RPC" as soon as a worker takes part, else "CPU".
        model_type: architecture, size and quantisation as llama.cpp words them.
        model_size: bytes of all tensors.
        model_n_params: elements of all tensors.
        threads: CPU threads in use here.
        default_threads: CPU threads if nobody says otherwise.
    """

    build: str
    cpu: str
    backend: str
    model_type: str
    model_size: int
    model_n_params: int
    threads: int
    default_threads: int


@dataclass(frozen=True, slots=True)
class Result:
    """One measured case: nanoseconds of each repetition, and when it began (ISO 8601, UTC)."""

    case: Case
    samples_ns: tuple[int, ...]
    test_time: str

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second of each repetition."""
        return stats.rates(self.case.tokens, self.samples_ns)


#: stands in where only a record's keys and types matter
_NOTHING: Final = Result(Case(), (1,), "")
_SQL_TYPES: Final = {str: "TEXT", int: "INTEGER", float: "REAL"}


class _Column(NamedTuple):
    name: str
    width: int  # negative: to the left

    def cell(self, text: str) -> str:
        return f" {text:>{self.width}} |" if self.width > 0 else f" {text:<{-self.width}} |"

    def rule(self) -> str:
        return f" {'-' * (abs(self.width) - 1)}{':' if self.width > 0 else '-'} |"


def build_number(build: str) -> int:
    """Number in a build's name ("b11549" gives 11549); 0 if it has none."""
    found = re.match(r"b(\d+)", build)
    return int(found[1]) if found else 0


def _split(shares: Sequence[float] | None) -> str:
    return "/".join(f"{share:.2f}" for share in shares or (0.0,))


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
        "n_cpu_moe": 0,
        "split_mode": llama.split_mode,
        "main_gpu": llama.main_gpu,
        "no_kv_offload": False,
        "flash_attn": _FLASH[llama.flash_attn],
        "devices": "auto" if llama.devices is None else "/".join(llama.devices) or "none",
        "tensor_split": _split(llama.tensor_split),
        "tensor_buft_overrides": ";".join(llama.tensor_overrides) or "none",
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


def _flat(setup: Setup, settings: BenchSettings, result: Result) -> dict[str, str | int | float]:
    """A record for a table of a database: no samples, lists joined, truth as 1 and 0, as llama-bench has it."""
    flat: dict[str, str | int | float] = {}
    for key, value in record(setup, settings, result).items():
        if isinstance(value, list):
            if not key.startswith("samples_"):
                flat[key] = ",".join(map(str, value))
        else:
            flat[key] = value if isinstance(value, float) else int(value) if isinstance(value, int) else str(value)
    return flat


def csv_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """Rows of a CSV file, its header first."""
    yield ",".join(_flat(setup, settings, _NOTHING)) + "\n"
    for result in results:
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(_flat(setup, settings, result).values())
        yield text.getvalue()


def sql_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """Statements for sqlite3: the table if it is not there yet, and a row for each case."""
    columns = _flat(setup, settings, _NOTHING)
    types = ",\n".join(f"  {key} {_SQL_TYPES[type(value)]}" for key, value in columns.items())
    yield f"CREATE TABLE IF NOT EXISTS llama_bench (\n{types}\n);\n\n"
    for result in results:
        values = (str(value).replace("'", "''") for value in _flat(setup, settings, result).values())
        quoted = ", ".join(f"'{value}'" for value in values)
        yield f"INSERT INTO llama_bench ({', '.join(columns)}) VALUES ({quoted});\n"  # noqa: S608  text for sqlite3, with quotes doubled


def _columns(setup: Setup, llama: LlamaOptions) -> list[tuple[_Column, str]]:
    """Columns between the model's and the test's: always the backend, the rest where it differs from the default."""
    local = "CPU" in setup.backend
    default = LlamaOptions(model=llama.model)
    rows = (
        (True, _Column("backend", -10), setup.backend),
        (not local, _Column("ngl", 3), str(llama.n_gpu_layers)),
        (local or setup.threads != setup.default_threads, _Column("threads", 7), str(setup.threads)),
        (llama.n_batch != default.n_batch, _Column("n_batch", 7), str(llama.n_batch)),
        (llama.n_ubatch != default.n_ubatch, _Column("n_ubatch", 8), str(llama.n_ubatch)),
        (llama.type_k != default.type_k, _Column("type_k", 6), llama.type_k),
        (llama.type_v != default.type_v, _Column("type_v", 6), llama.type_v),
        (llama.main_gpu != default.main_gpu, _Column("main_gpu", 10), str(llama.main_gpu)),
        (llama.split_mode != default.split_mode, _Column("sm", 6), llama.split_mode),
        (llama.flash_attn != default.flash_attn, _Column("fa", 2), str(int(_FLASH[llama.flash_attn]))),
        (llama.devices is not None, _Column("dev", -12), "/".join(llama.devices or ()) or "none"),
        (bool(llama.tensor_split), _Column("ts", -12), _split(llama.tensor_split)),
        (bool(llama.tensor_overrides), _Column("ot", -21), ";".join(llama.tensor_overrides)),
        (llama.mmap != default.mmap, _Column("mmap", 4), str(int(llama.mmap))),
        (llama.repack != default.repack, _Column("repack", 10), str(int(llama.repack))),
    )
    return [(column, value) for shown, column, value in rows if shown]


def _size(count: int) -> str:
    return f"{count / 1024**2:.2f} MiB" if count < _GIB else f"{count / _GIB:.2f} GiB"


def _params(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count < _BILLION else f"{count / 1e9:.2f} B"


def markdown_lines(setup: Setup, settings: BenchSettings, results: Iterator[Result]) -> Iterator[str]:
    """Lines of the Markdown table, each as soon as its case is measured, and the build below it."""
    shared = [
        (_Column("model", -30), setup.model_type),
        (_Column("size", 10), _size(setup.model_size)),
        (_Column("params", 10), _params(setup.model_n_params)),
        *_columns(setup, settings.llama),
    ]
    test, speed = _Column("test", 15), _Column("t/s", 20)
    columns = [*(column for column, _ in shared), test, speed]
    names = "".join(column.cell(column.name) for column in columns)
    yield f"|{names}\n|{''.join(column.rule() for column in columns)}\n"
    for result in results:
        rates = result.samples_ts
        cells = [column.cell(value) for column, value in shared]
        cells += [test.cell(result.case.name), speed.cell(f"{stats.mean(rates):.2f} ± {stats.deviation(rates):.2f}")]
        yield "|" + "".join(cells) + "\n"
    yield f"\nbuild: {setup.build} ({build_number(setup.build)})\n"


#: each gives one piece before the cases, one for each case, and at most one after them
FORMATS: Final[dict[str, Callable[[Setup, BenchSettings, Iterator[Result]], Iterator[str]]]] = {
    "md": markdown_lines,
    "csv": csv_lines,
    "json": json_lines,
    "jsonl": jsonl_lines,
    "sql": sql_lines,
}
