"""How results are shown: tables and bars for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from dagster_jet.store import OnProgress, UpkeepProgress

_UNITS = ("B", "KB", "MB", "GB", "TB")


def show(rows: Sequence[Mapping[str, Any]], *, title: str, as_json: bool) -> None:
    """Prints rows that share their keys."""
    if as_json:
        show_json(list(rows))
        return
    console = Console()
    if not rows:
        console.print(f"{title}: nothing there")
        return
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*["" if value is None else str(value) for value in row.values()])
    console.print(table)


def show_json(document: Any) -> None:
    """Prints one JSON document."""
    print(json.dumps(document, indent=1, default=str))


def say(sentence: str) -> None:
    """Prints a sentence for people, as it is."""
    Console().print(sentence, markup=False, highlight=False)


@contextmanager
def progress_bars() -> Iterator[OnProgress]:
    """Bars on the terminal, one per step; nothing where there is no terminal.

    On standard error: what a program reads on standard output stays whole.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bars:
        tasks: dict[str, Any] = {}

        def advance(progress: UpkeepProgress) -> None:
            if progress.step not in tasks:
                tasks[progress.step] = bars.add_task(progress.step, total=progress.total, rate="")
            bars.update(
                tasks[progress.step],
                completed=progress.done,
                total=progress.total,
                rate=f"{size(progress.bytes)}, {size(progress.bytes_per_second)}/s"
                if progress.bytes
                else "",
            )

        yield advance


def when(milliseconds: int) -> str:
    """Returns a moment as people read it."""
    moment = datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count: float) -> str:
    """Returns a number of bytes as people read it."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"
