"""A progress bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wireherd.llm.fetch import Progress as ProgressCallback

_REDRAWS_PER_S = 8


@contextlib.contextmanager
def bar(*, quiet: bool = False) -> Iterator[ProgressCallback]:
    """Give a callback (what, done, total) that draws one bar on stderr, which is wiped away at the end."""
    if quiet or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=_REDRAWS_PER_S,
    ) as progress:
        task: TaskID | None = None

        def show(what: str, done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = progress.add_task(what, total=total or None, completed=done)
            else:
                progress.update(task, description=what, total=total or None, completed=done)

        yield show
