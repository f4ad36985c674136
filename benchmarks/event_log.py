"""Cost of a stream in Dagster's event log: bytes and time per report, and so per month.

A real instance on SQLite, as `dagster dev` has it, and reports of a job with two assets and a
source: with and without columns, while it waits for input, and runs of its checks.

Two figures, because either alone misleads. *Text* is the events as Dagster serialises them, once:
what we decide, and what a server would keep. *Disk* is how much the files grow. SQLite has an
event twice, in its run's file and in the index, each on pages of 4 KB: an event of 2.7 KB takes as
much as one of 4 KB, and so a few columns may cost text and no disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import dagster as dg
from rich.console import Console
from rich.table import Table

from dagster_jet import (
    JetResource,
    Pipeline,
    aggregates,
    build_jet_asset_checks,
    jet_assets,
    sinks,
    sources,
    windows,
)
from dagster_jet.core.columns import ColumnOrigin, StageColumn
from dagster_jet.execution.events import SnapshotCommitted, SourceProgress, StageProgress
from dagster_jet.orchestration.asset_reports import IDLE_SECONDS, AssetEvent, AssetReports
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.report_schedule import ReportSchedule
from dagster_jet.orchestration.table_facts import TableFacts

_ASSETS = [
    ReportedAsset("hourly", dg.AssetKey(["stream", "hourly"]), "v1", is_sink=False, has_state=True),
    ReportedAsset("out", dg.AssetKey(["stream", "out"]), "v1", is_sink=True, has_state=False),
]
_MONTH_S = 30 * 86_400
EventsOf: TypeAlias = Callable[[AssetReports, int], Iterator[AssetEvent]]


def _snapshot(number: int) -> SnapshotCommitted:
    progress = StageProgress(rows_in=1_000 * number, rows_out=900 * number, watermark_ms=number)
    source = SourceProgress(
        rows_read=1_000 * number,
        position={"files": number},
        lag={"files": 2, "bytes": 26_000_000},
        watermark_ms=number,
        lost=0,
    )
    stages = {asset.stage: progress for asset in _ASSETS}
    return SnapshotCommitted(
        "stream", 1, number, number, 0, 10.5, 4.5, 1_024, 4_096, 0, stages, {"in": source}
    )


@dataclass(frozen=True)
class Cost:
    """Cost of one round: a report of both assets and their source, or a run.

    Attributes:
        events: how many Dagster has stored.
        text_bytes: of the events as serialised, once.
        disk_bytes: by which DAGSTER_HOME has grown.
        ms: it took.
    """

    events: float
    text_bytes: float
    disk_bytes: float
    ms: float


@dataclass(frozen=True)
class _Mark:
    """Size of DAGSTER_HOME at one time."""

    events: int
    text_bytes: int
    disk_bytes: int
    seconds: float

    def cost(self, since: _Mark, rounds: int) -> Cost:
        return Cost(
            (self.events - since.events) / rounds,
            (self.text_bytes - since.text_bytes) / rounds,
            (self.disk_bytes - since.disk_bytes) / rounds,
            (self.seconds - since.seconds) * 1000 / rounds,
        )


def _columns(count: int) -> dict[str, tuple[StageColumn, ...]]:
    """Columns of each asset; each has one column of the source as its origin."""
    return {
        asset.stage: tuple(
            StageColumn(f"column_{n}", "double", origins=(ColumnOrigin("in", f"column_{n}"),))
            for n in range(count)
        )
        for asset in _ASSETS
    }


def _reports(columns: int) -> AssetReports:
    source = dg.AssetKey(["stream", "in"])
    tables = TableFacts({"in": source})
    if columns:
        tables.ask(lambda: _columns(columns))
    return AssetReports(_ASSETS, sources={"in": source}, tables=tables)


def new_rows(asset_reports: AssetReports, number: int) -> Iterator[AssetEvent]:
    return asset_reports.committed(_snapshot(number), number)


def waiting(asset_reports: AssetReports, number: int) -> Iterator[AssetEvent]:
    if number == 1:
        yield from asset_reports.committed(_snapshot(number), number)
    yield from asset_reports.idle(_ASSETS, number)


def cost_of_report(
    home: Path, rounds: int, events_of: EventsOf, *, columns: int = 0, warm_up: int = 100
) -> Cost:
    """Measure reports of both assets and their source, in one run.

    Args:
        home: scratch; DAGSTER_HOME is made there.
        rounds: how many.
        events_of: what is reported.
        columns: of each asset, as Spark has said; 0: it has not.
        warm_up: rounds that do not count: tables have their first pages then.
    """
    home.mkdir()
    marks: list[_Mark] = []

    @dg.multi_asset(specs=[dg.AssetSpec(asset.key, skippable=True) for asset in _ASSETS])
    def stream() -> Any:
        asset_reports = _reports(columns)
        for number in range(1, warm_up + rounds + 1):
            if number == warm_up + 1:
                marks.append(_mark(home))
            yield from events_of(asset_reports, number)
        # Dagster stores an event before it asks for the next one.
        marks.append(_mark(home))

    with dg.DagsterInstance.local_temp(str(home)) as instance:
        dg.materialize([stream], instance=instance)
    begin, end = marks
    return end.cost(begin, rounds)


def cost_of_run(home: Path, runs: int, definitions: dg.Definitions, job: str) -> Cost:
    """Measure whole runs: what is ours of them, and what is Dagster's.

    Args:
        home: scratch; DAGSTER_HOME is made there.
        runs: how many; a few before them do not count.
        definitions: with that job.
        job: what runs.
    """
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        for number in range(runs + 3):
            if number == 3:
                begin = _mark(home)
            definitions.resolve_job_def(job).execute_in_process(instance=instance)
        return _mark(home).cost(begin, runs)


def checks_of_a_job(folder: Path) -> dg.Definitions:
    """All checks of a pipeline with a stage and a sink.

    Nothing runs: what a check says is a sentence then, too.
    """
    p = Pipeline("stream")
    rows = p.read_from(sources.sequence(rate=1), name="in").with_timestamps("timestamp")
    hourly = rows.window(windows.tumbling("1 hour")).aggregate(n=aggregates.count(), name="hourly")
    hourly.write_to(sinks.files(str(folder / "out"), format="json"), name="out")

    @jet_assets(pipeline=p)
    def stream() -> Any:
        yield from ()

    checks = build_jet_asset_checks(stream)
    return dg.Definitions(
        assets=[stream],
        asset_checks=[checks],
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(checks))],
        resources={"jet": JetResource(store=[f"file://{folder / 'store'}"], backup_count=0)},
    )


def nothing() -> dg.Definitions:
    """A job that does nothing: what a run costs in Dagster."""

    @dg.op
    def rest() -> None:
        pass

    @dg.job(name="nothing")
    def rests() -> None:
        rest()

    return dg.Definitions(jobs=[rests])


def run(folder: Path, *, reports: int, console: Console) -> dict[str, Any]:
    """Measure reports and runs; returns what one costs, and a month of them.

    Args:
        folder: scratch.
        reports: how many of each kind.
        console: where the table goes.
    """
    monthly = _reports_in_a_month()
    runs = max(reports // 20, 5)
    measured: list[tuple[str, Cost, int]] = [
        (f"new rows, {n} columns", cost_of_report(folder / f"{n}", reports, new_rows, columns=n), m)
        for n, m in ((0, monthly), (5, monthly), (20, monthly))
    ]
    idle = cost_of_report(folder / "idle", reports, waiting)
    measured.append(("waiting for input", idle, int(_MONTH_S / IDLE_SECONDS)))
    checks = cost_of_run(folder / "checks", runs, checks_of_a_job(folder), "checks")
    empty = cost_of_run(folder / "nothing", runs, nothing(), "nothing")
    for minutes in (5, 30):
        times = _MONTH_S // (60 * minutes)
        measured.append((f"a run of all checks, every {minutes} minutes", checks, times))
        measured.append((f"a run of nothing, every {minutes} minutes", empty, times))
    table = Table(
        "of two assets and their source", "events", "KB text", "KB disk", "ms", "in a month", "MB"
    )
    for what, cost, times in measured:
        table.add_row(
            what,
            f"{cost.events:.0f}",
            f"{cost.text_bytes / 1000:.1f}",
            f"{cost.disk_bytes / 1000:.1f}",
            f"{cost.ms:.0f}",
            f"{times:,}",
            f"{cost.disk_bytes * times / 1e6:,.0f}",
        )
    console.print(table)
    return {
        what: {**vars(cost), "per_month": times, "disk_mb_per_month": cost.disk_bytes * times / 1e6}
        for what, cost, times in measured
    }


def _reports_in_a_month() -> int:
    """Number of reports of a stream that has a snapshot every second, in one run, at default
    settings."""
    shortest, longest = (
        JetResource.model_fields[f"{which}_report_interval_seconds"].default
        for which in ("min", "max")
    )
    schedule, newest = ReportSchedule(shortest, longest), _snapshot(1)
    reports = 0
    for second in range(_MONTH_S):
        schedule.offer(newest)
        reports += schedule.take(float(second)) is not None
    return reports


def _mark(home: Path) -> _Mark:
    events = text_bytes = 0
    for database in home.rglob("*.db"):
        with closing(sqlite3.connect(database)) as connection:
            # SQLite's log of writes is of any length: only what is in the tables counts.
            connection.execute("pragma wal_checkpoint(truncate)")
            if database.parent.name == "runs" and database.name != "index.db":
                (counted,) = connection.execute(
                    "select count(*), coalesce(sum(length(event)), 0) from event_logs"
                )
                events, text_bytes = events + counted[0], text_bytes + counted[1]
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    return _Mark(events, text_bytes, size, time.perf_counter())
