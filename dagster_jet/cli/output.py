"""Prints results: tables and progress bars for users, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from dagster_jet.core.moments import moment

if TYPE_CHECKING:
    from dagster_jet.core.answers import Answer
    from dagster_jet.store import OnProgress, UpkeepProgress

_PIPED_WIDTH = 200
_UNITS = ("B", "KB", "MB", "GB", "TB")


def show(rows: Sequence[Mapping[str, Any]], *, title: str, as_json: bool) -> None:
    """Prints rows that have the same keys; tables omit columns without values."""
    if as_json:
        show_json(list(rows))
        return
    if not rows:
        console().print(f"{title}: nothing there")
        return
    filled = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = Table(title=title, title_justify="left")
    for name in filled:
        table.add_column(_label(name), overflow="fold")
    for row in rows:
        table.add_row(*[_text(row[name]) for name in filled])
    printed = console()
    unbounded = printed.options.update(width=1_000)
    least = printed.measure(table, options=unbounded).minimum
    if not sys.stdout.isatty():  # a pipe is as wide as the longest names
        printed.width = max(printed.width, least)
    if len(filled) == 1 or least <= printed.width:
        printed.print(table)
        return
    for row in rows:  # a narrow terminal would cut names and states
        show_one(row, title=title)


def show_one(row: Mapping[str, Any], *, title: str) -> None:
    """Prints one row as a table with a line per value; empty values are omitted."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in row.items():
        if value is not None:
            table.add_row(_label(name), _text(value))
    console().print(table)


def show_answers(answers: Sequence[Answer], *, title: str) -> None:
    """Prints the answers of a probe as a table."""
    rows = [
        {
            "question": one.question,
            "verdict": one.verdict.value,
            "what_it_means": one.meaning,
            "cure": one.cure,
        }
        for one in answers
    ]
    show(rows, title=title, as_json=False)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    return "" if value is None else escape(str(value))


def console() -> Console:
    """Returns a console; piped output has a fixed width, so that lines are not broken."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def show_json(document: Any) -> None:
    print(json.dumps(document, indent=1, default=str))


def say(sentence: str) -> None:
    """Prints a sentence without markup."""
    console().print(sentence, markup=False, highlight=False, soft_wrap=not sys.stdout.isatty())


@contextmanager
def progress_bars() -> Iterator[OnProgress]:
    """Yields a callback that shows a progress bar per step; without a terminal it does nothing.

    Bars go to standard error, so that standard output can be parsed.
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
    """Formats a time (ms since the epoch) for users."""
    return moment(milliseconds, " UTC")


def size(count: float) -> str:
    """Formats a number of bytes for users."""
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"
