"""What a stream leaves in Dagster's event log: bytes and time per report, and so per month.

A real instance on SQLite, as `dagster dev` has it, and reports of a job with two assets.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dagster as dg
from rich.console import Console
from rich.table import Table

from dagster_jet import JetResource
from dagster_jet.execution.events import SnapshotCommitted, SourceProgress, StageProgress
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.report_schedule import ReportSchedule

_ASSETS = [
    ReportedAsset("hourly", dg.AssetKey(["stream", "hourly"]), "v1", is_sink=False, has_state=True),
    ReportedAsset("out", dg.AssetKey(["stream", "out"]), "v1", is_sink=True, has_state=False),
]
_MONTH_S = 30 * 86_400


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


def run(folder: Path, *, reports: int, console: Console) -> dict[str, Any]:
    """Report `reports` snapshots in one run; returns bytes and milliseconds for each asset's.

    Args:
        folder: scratch; DAGSTER_HOME is made below it.
        reports: how many snapshots, the first hundred besides: tables have their first pages then.
        console: where the table goes.
    """
    home = folder / "home"
    home.mkdir()
    measured: dict[str, float] = {}

    @dg.multi_asset(specs=[dg.AssetSpec(asset.key, skippable=True) for asset in _ASSETS])
    def stream() -> Any:
        asset_reports = AssetReports(_ASSETS)
        for number in range(1, reports + 101):
            if number == 101:
                measured.update(begun=time.perf_counter(), bytes=_size(home))
            yield from asset_reports.committed(_snapshot(number), number)

    with dg.DagsterInstance.local_temp(str(home)) as instance:
        dg.materialize([stream], instance=instance)
    seconds = time.perf_counter() - measured["begun"]
    events = reports * len(_ASSETS)
    each = (_size(home) - measured["bytes"]) / events
    monthly = _reports_in_a_month()
    result = {
        "events": events,
        "bytes_per_event": each,
        "ms_per_event": seconds * 1000 / events,
        "reports_per_month": monthly,
        "mb_per_asset_and_month": each * monthly / 1e6,
    }
    table = Table(
        "reports", "KB each", "ms each", "MB per asset and month, at the default interval"
    )
    table.add_row(
        f"{events:,}",
        f"{each / 1000:.1f}",
        f"{result['ms_per_event']:.1f}",
        f"{monthly:,}",
        f"{result['mb_per_asset_and_month']:,.0f}",
    )
    console.print(table)
    return result


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
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
