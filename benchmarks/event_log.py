"""What a stream leaves in Dagster's event log: bytes and time per report, and so per month.

A real instance on SQLite, as `dagster dev` has it, and reports of a job with two assets and a
source: with and without columns, while it waits for input, and runs of its checks.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
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


def _columns() -> dict[str, tuple[StageColumn, ...]]:
    """Five of each asset, each made of one of the source's."""
    return {
        asset.stage: tuple(
            StageColumn(f"column_{n}", "double", origins=(ColumnOrigin("in", f"column_{n}"),))
            for n in range(5)
        )
        for asset in _ASSETS
    }


def _reports(*, with_columns: bool) -> AssetReports:
    source = dg.AssetKey(["stream", "in"])
    tables = TableFacts({"in": source})
    if with_columns:
        tables.ask(_columns)
    return AssetReports(_ASSETS, sources={"in": source}, tables=tables)


def _rows(asset_reports: AssetReports, number: int) -> Iterator[AssetEvent]:
    return asset_reports.committed(_snapshot(number), number)


def _idle(asset_reports: AssetReports, number: int) -> Iterator[AssetEvent]:
    if number == 1:
        yield from asset_reports.committed(_snapshot(number), number)
    yield from asset_reports.idle(_ASSETS, number)


def bytes_per_round(
    home: Path, rounds: int, events_of: EventsOf, *, with_columns: bool = False
) -> tuple[float, float]:
    """Return bytes and milliseconds of one report of both assets and their source.

    Args:
        home: scratch; DAGSTER_HOME is made there.
        rounds: how many, the first hundred besides: tables have their first pages then.
        events_of: what is reported.
        with_columns: whether Spark has said what columns there are.
    """
    home.mkdir()
    measured: dict[str, float] = {}

    @dg.multi_asset(specs=[dg.AssetSpec(asset.key, skippable=True) for asset in _ASSETS])
    def stream() -> Any:
        asset_reports = _reports(with_columns=with_columns)
        for number in range(1, rounds + 101):
            if number == 101:
                measured.update(begun=time.perf_counter(), bytes=_size(home))
            yield from events_of(asset_reports, number)

    with dg.DagsterInstance.local_temp(str(home)) as instance:
        dg.materialize([stream], instance=instance)
    seconds = time.perf_counter() - measured["begun"]
    return (_size(home) - measured["bytes"]) / rounds, seconds * 1000 / rounds


def bytes_per_check_run(home: Path, runs: int) -> float:
    """Return what a run of all checks of a pipeline with a stage and a sink leaves."""
    home.mkdir()
    p = Pipeline("stream")
    rows = p.read_from(sources.sequence(rate=1), name="in").with_timestamps("timestamp")
    hourly = rows.window(windows.tumbling("1 hour")).aggregate(n=aggregates.count(), name="hourly")
    hourly.write_to(sinks.files(str(home / "out"), format="json"), name="out")

    @jet_assets(pipeline=p)
    def stream() -> Any:
        yield from ()

    store = home.with_suffix(".store")
    checks = build_jet_asset_checks(stream)
    job = dg.define_asset_job("checks", dg.AssetSelection.checks(checks))
    definitions = dg.Definitions(
        assets=[stream],
        asset_checks=[checks],
        jobs=[job],
        resources={"jet": JetResource(store=[f"file://{store}"], backup_count=0)},
    )
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        for number in range(runs + 5):
            if number == 5:
                before = _size(home)
            definitions.resolve_job_def("checks").execute_in_process(instance=instance)
    return (_size(home) - before) / runs


def run(folder: Path, *, reports: int, console: Console) -> dict[str, Any]:
    """Report `reports` snapshots in one run, and so on; returns bytes, milliseconds and months.

    Args:
        folder: scratch.
        reports: how many of each kind.
        console: where the table goes.
    """
    monthly = _reports_in_a_month()
    idle_monthly = int(_MONTH_S / IDLE_SECONDS)
    plain, plain_ms = bytes_per_round(folder / "plain", reports, _rows)
    wide, wide_ms = bytes_per_round(folder / "columns", reports, _rows, with_columns=True)
    idle, idle_ms = bytes_per_round(folder / "idle", reports, _idle)
    checked = bytes_per_check_run(folder / "checks", max(reports // 20, 5))
    rows = [
        ("new rows, no columns", plain, plain_ms, monthly),
        ("new rows, 5 columns", wide, wide_ms, monthly),
        ("waiting for input", idle, idle_ms, idle_monthly),
        ("a run of all checks, every 5 minutes", checked, None, _MONTH_S // 300),
    ]
    table = Table("of two assets and their source", "KB", "ms", "in a month", "MB in a month")
    for what, size, ms, times in rows:
        table.add_row(
            what,
            f"{size / 1000:.1f}",
            "" if ms is None else f"{ms:.1f}",
            f"{times:,}",
            f"{size * times / 1e6:,.0f}",
        )
    console.print(table)
    return {
        what: {"bytes": size, "ms": ms, "per_month": times, "mb_per_month": size * times / 1e6}
        for what, size, ms, times in rows
    }


def _reports_in_a_month() -> int:
    """Of a stream that has a snapshot every second, in one run, at default settings."""
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


def _size(folder: Path) -> int:
    """Of what is in the tables: SQLite's log of writes is of any length."""
    for database in folder.rglob("*.db"):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("pragma wal_checkpoint(truncate)")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
