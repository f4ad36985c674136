"""``dagster-jet top``: live table of all jobs of a store."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dagster_jet.cli.options import Target, on_store
from dagster_jet.cli.output import console, show_json
from dagster_jet.errors import JetError
from dagster_jet.snapshot.record import JobStatus

if TYPE_CHECKING:
    from dagster_jet.observe.reading.overview import JobOverview, Overviews

_END = "\x04"
_STYLES = {
    JobStatus.RUNNING: "green",
    JobStatus.FAILED: "red",
    JobStatus.NOT_RUNNING: "yellow",
    JobStatus.SUSPENDED: "yellow",
}


class Order(str, Enum):
    """Sort column of the table; the largest or worst value comes first."""

    JOB = "job"
    STATUS = "status"
    ROWS = "rows"
    LAG = "lag"
    WATERMARK = "watermark"
    EPOCH = "epoch"
    SNAPSHOT = "snapshot"
    RESTARTS = "restarts"

    @property
    def next(self) -> Order:
        """The next order, cyclically."""
        orders = list(Order)
        return orders[(orders.index(self) + 1) % len(orders)]

    def sorted(self, jobs: Sequence[JobOverview]) -> list[JobOverview]:
        """Returns the jobs in this order; jobs without a value come last."""
        keys: dict[Order, Callable[[JobOverview], float | None]] = {
            Order.ROWS: lambda job: job.rows_per_second,
            Order.LAG: lambda job: sum(job.lag.values()) if job.lag else None,
            Order.WATERMARK: lambda job: job.watermark_lag_ms,
            Order.EPOCH: lambda job: job.epoch_ms,
            Order.SNAPSHOT: lambda job: job.snapshot_age_ms,
            Order.RESTARTS: lambda job: job.restarts,
        }
        if self is Order.STATUS:
            return sorted(jobs, key=lambda job: (job.status.value, job.job))
        key = keys.get(self)
        if key is None:
            return sorted(jobs, key=lambda job: job.job)

        def largest_first(job: JobOverview) -> tuple[bool, float, str]:
            value = key(job)
            return value is None, -(value or 0), job.job

        return sorted(jobs, key=largest_first)


@on_store
def top(
    target: Target,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    sort: Annotated[Order, typer.Option(help="Sort order of the table.")] = Order.JOB,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates.")] = 2.0,
) -> None:
    """Shows all jobs of the store, live: status, rows, lag, watermarks, snapshots.

    Keys: q quits, s sorts by the next column. Without a terminal one table is printed.
    """

    from dagster_jet.observe.reading.overview import Overviews

    with target.open_jet() as jet:
        overviews = Overviews(jet.store)
        if target.as_json:
            show_json([job.to_json() for job in sort.sorted(overviews.look())])
        elif once or not sys.stdout.isatty() or console().is_dumb_terminal:
            console().print(_table(sort.sorted(overviews.look()), sort))
        else:
            _watch(overviews, sort, every)


def _watch(overviews: Overviews, order: Order, every: float) -> None:
    """Redraws the table on an alternate screen, which disappears at the end."""
    jobs: list[JobOverview] = []
    with _keys() as key, Live(screen=True, auto_refresh=False, transient=True) as live:
        try:
            while True:
                problem = ""
                try:
                    jobs = overviews.look()
                except JetError as error:  # the store may answer next time
                    problem = str(error)
                until = time.monotonic() + every
                while True:
                    live.update(_screen(order.sorted(jobs), order, problem), refresh=True)
                    pressed = key(max(0.0, until - time.monotonic()))
                    if pressed in ("q", "Q", _END):
                        return
                    if pressed in ("s", "S"):
                        order = order.next
                    elif time.monotonic() >= until:
                        break
        except KeyboardInterrupt:
            return


def _screen(jobs: Sequence[JobOverview], order: Order, problem: str) -> Table:
    table = _table(jobs, order)
    table.caption = Text(problem or "q: end   s: sort by the next column")
    table.caption_justify = "left"
    return table


def _table(jobs: Sequence[JobOverview], order: Order) -> Table:
    title = f"{len(jobs)} jobs, by {order.value}, {time.strftime('%H:%M:%S')}"
    table = Table(title=title, title_justify="left", expand=True)
    table.add_column("job", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for name in ("rows/s", "waiting", "watermark lag", "epoch", "snapshot age", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("doing", no_wrap=True, overflow="ellipsis", ratio=1)
    for job in jobs:
        table.add_row(*map(Text, _cells(job)), style=_STYLES.get(job.status))
    return table


def _cells(job: JobOverview) -> tuple[str, ...]:
    from dagster_jet.observe.reading.run_progress import count, span

    waiting = ", ".join(f"{count(number)} {unit}" for unit, number in job.lag.items() if number)
    lag_ms, age_ms = job.watermark_lag_ms, job.snapshot_age_ms
    return (
        job.job,
        job.status.value,
        "" if job.rows_per_second is None else count(job.rows_per_second),
        waiting,
        "" if lag_ms is None else span(lag_ms),
        "" if job.epoch_ms is None else f"{job.epoch_ms:,.0f} ms",
        "" if age_ms is None else span(age_ms),
        str(job.restarts),
        " ".join(job.doing.split()),
    )


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yields a function that waits up to the given seconds for a key; it returns "" without one.

    The terminal's settings are restored in any case.
    """
    stream = sys.stdin
    if not stream.isatty():
        yield _no_key
        return
    descriptor = stream.fileno()
    before: list[Any] = termios.tcgetattr(descriptor)

    def key(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        # os.read: select does not see characters that the stream has buffered.
        if not ready:
            return ""
        return os.read(descriptor, 1).decode("ascii", "replace") or _END  # the terminal is gone

    try:
        tty.setcbreak(descriptor)
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
