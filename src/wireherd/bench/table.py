"""The Markdown table: llama-bench's columns, ours behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from wireherd.bench import stats, traffic
from wireherd.bench.result import FLASH, TEXT_KEYS, split_text
from wireherd.llm.options import LlamaOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.bench.cases import BenchSettings
    from wireherd.bench.result import Result, Setup

_GIB: Final = 1024**3
_BILLION: Final = 1_000_000_000


class Column(NamedTuple):
    """A column and how wide it is at least."""

    name: str
    width: int  # negative: to the left

    def cell(self, text: str) -> str:
        """A value in it."""
        return f" {text:>{self.width}} |" if self.width > 0 else f" {text:<{-self.width}} |"

    def rule(self) -> str:
        """The line below its name, which says to which side it goes."""
        return f" {'-' * (abs(self.width) - 1)}{':' if self.width > 0 else '-'} |"


def _settings_columns(setup: Setup, llama: LlamaOptions) -> tuple[tuple[bool, Column, str], ...]:
    """Columns between the model's and the test's: always the backend, the rest where it differs from the default."""
    local = "CPU" in setup.backend
    default = LlamaOptions(model=llama.model)
    return (
        (True, Column("backend", -10), setup.backend),
        (not local, Column("ngl", 3), str(llama.n_gpu_layers)),
        (llama.n_cpu_moe != default.n_cpu_moe, Column("n_cpu_moe", 10), str(llama.n_cpu_moe)),
        (local or setup.threads != setup.default_threads, Column("threads", 7), str(setup.threads)),
        (llama.n_batch != default.n_batch, Column("n_batch", 7), str(llama.n_batch)),
        (llama.n_ubatch != default.n_ubatch, Column("n_ubatch", 8), str(llama.n_ubatch)),
        (llama.type_k != default.type_k, Column("type_k", 6), llama.type_k),
        (llama.type_v != default.type_v, Column("type_v", 6), llama.type_v),
        (llama.main_gpu != default.main_gpu, Column("main_gpu", 10), str(llama.main_gpu)),
        (llama.split_mode != default.split_mode, Column("sm", 6), llama.split_mode),
        (llama.flash_attn != default.flash_attn, Column("fa", 2), str(int(FLASH[llama.flash_attn]))),
        (llama.devices is not None, Column("dev", -12), "/".join(llama.devices or ()) or "none"),
        (bool(llama.tensor_split), Column("ts", -12), split_text(llama.tensor_split)),
        (bool(llama.override_rules), Column("ot", -21), ";".join(llama.override_rules)),
        (llama.mmap != default.mmap, Column("mmap", 4), str(int(llama.mmap))),
        (llama.repack != default.repack, Column("repack", 10), str(int(llama.repack))),
    )


def _size(count: int) -> str:
    return f"{count / 1024**2:.2f} MiB" if count < _GIB else f"{count / _GIB:.2f} GiB"


def _params(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count < _BILLION else f"{count / 1e9:.2f} B"


class Table:
    """The table of one side, or of two under the same columns."""

    def __init__(
        self,
        sides: Sequence[tuple[Setup, BenchSettings]],
        *,
        mode: Column | None = None,
        more: Sequence[Column] = (),
        text: bool = False,
    ) -> None:
        """Choose the columns.

        Args:
            sides: what was measured on and with; columns appear where one differs from the defaults.
            mode: a column of its own before the test's.
            more: columns after all others.
            text: whether cases are behind a text and have its figures.
        """
        self._sides = sides
        self._text = text
        self._mode = mode
        described = [_described(setup, settings) for setup, settings in sides]
        kept = [any(rows[number][0] for rows in described) for number in range(len(described[0]))]
        self._shared = [[row for row, keep in zip(rows, kept, strict=True) if keep] for rows in described]
        self._wire = any(settings.llama.rpc for _, settings in sides)
        self._link = self._wire and any(settings.link for _, settings in sides)
        own = [Column(name, 8) for name in TEXT_KEYS] if text else []
        own += [Column("link", -18)] if self._link else []
        own += [Column(name, width) for name, width in traffic.COLUMNS] if self._wire else []
        self._rest = [Column("test", 15), Column("t/s", 20), *own, *more]
        self.columns = [column for _, column, _ in self._shared[0]] + ([mode] if mode else []) + self._rest

    def header(self) -> str:
        """Names and the rule below them."""
        names = "".join(column.cell(column.name) for column in self.columns)
        return f"|{names}\n|{''.join(column.rule() for column in self.columns)}\n"

    def row(self, result: Result, side: int = 0, mode: str = "", more: Sequence[str] = ()) -> str:
        """One measured case of a side."""
        rates = result.samples_ts
        values = [result.case.name, f"{stats.mean(rates):.2f} ± {stats.deviation(rates):.2f}"]
        values += [f"{result.text.get(name, 0.0):.1f}" for name in TEXT_KEYS] if self._text else []
        values += [self._sides[side][1].link] if self._link else []
        values += result.traffic.cells(result.tokens) if self._wire else []
        cells = [column.cell(value) for _, column, value in self._shared[side]]
        if self._mode is not None:
            cells.append(self._mode.cell(mode))
        cells += [column.cell(value) for column, value in zip(self._rest, [*values, *more], strict=True)]
        return "|" + "".join(cells) + "\n"


def _described(setup: Setup, settings: BenchSettings) -> list[tuple[bool, Column, str]]:
    return [
        (True, Column("model", -30), setup.model_type),
        (True, Column("size", 10), _size(setup.model_size)),
        (True, Column("params", 10), _params(setup.model_n_params)),
        *_settings_columns(setup, settings.llama),
    ]
