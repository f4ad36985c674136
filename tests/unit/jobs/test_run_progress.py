"""The progress line shows rows, rate, lag, watermark, last snapshot."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionEnded,
    ExecutionRestarting,
    ExecutionStarted,
    ProgressReported,
    SnapshotCommitted,
    SourceProgress,
    SourceUnavailable,
    StageProgress,
)
from dagster_jet.observe.reading.remote_progress import RemoteProgress
from dagster_jet.observe.reading.run_progress import RunProgress, count
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.ownership.lease import new_lease
from dagster_jet.snapshot.manifest import Counters, Manifest
from dagster_jet.snapshot.record import (
    Activity,
    Doing,
    ExecutionRecord,
    JobStatus,
    SnapshotRef,
    StopCause,
)

NOON_MS = 1_700_000_000_000


class Run:
    """A run's progress under a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0
        self.progress = RunProgress("shop", lambda: self.now)

    def starts(self, rows_read: int = 0) -> None:
        sources = {"in": SourceProgress(rows_read, {}, {"files": 3, "bytes": 1_250_000})}
        self.progress.note(ExecutionStarted("shop", 1, 0, None, None, 5, {}, sources))

    def epoch(self, rows: int, seconds: float = 1.0) -> None:
        self.now += seconds
        self.progress.note(EpochCompleted("shop", 1, 1, rows, 20.0))

    def snapshot(self, snapshot_id: int, **stages_ms: int | None) -> None:
        stages = {name: StageProgress(0, 0, watermark_ms=ms) for name, ms in stages_ms.items()}
        sources = {name: SourceProgress(0, {}, {"files": n}) for name, n in (("in", 2), ("b", 1))}
        self.progress.note(
            SnapshotCommitted("shop", 1, snapshot_id, 1, 0, 1, 1, 0, 0, 0, stages, sources)
        )


def test_before_data_flows() -> None:
    run = Run()
    run.now += 3
    assert run.progress.line() == "shop  starting, 3 s"


def test_everything_at_once() -> None:
    run = Run()
    run.starts()
    for _ in range(4):
        run.epoch(10_000)
    run.snapshot(7, hourly=NOON_MS, daily=NOON_MS - 1_000, silent=None)
    run.now += 1
    assert run.progress.line() == (
        "shop  40,000 rows  8.0 k rows/s  lag 3 files  watermark 2023-11-14 22:13:19  "
        "snapshot 7, 1 s ago"
    )


def test_what_waits_at_the_start_is_shown_with_its_units() -> None:
    run = Run()
    run.starts()
    assert "lag 3 files, 1.2 M bytes" in run.progress.line()


def test_lag_and_watermark_move_between_snapshots_too() -> None:
    run = Run()
    run.starts()
    sources = {"in": SourceProgress(10, {}, {"files": 1})}
    stages = {"hourly": StageProgress(0, 0, watermark_ms=NOON_MS)}
    run.progress.note(ProgressReported("shop", 1, stages, sources))
    assert "lag 1 files  watermark 2023-11-14 22:13:20" in run.progress.line()


def test_a_watermark_may_lie_outside_of_the_calendar() -> None:
    """Behind a first row of the year 1, as Go and .NET write a time that is not set."""
    run = Run()
    run.starts()
    run.snapshot(7, hourly=-62_135_596_800_000 - 5_000)
    assert "watermark before the year 1" in run.progress.line()
    run.snapshot(8, hourly=9_000_000_000_000_000)
    assert "watermark at the end  snapshot 8" in run.progress.line()


def test_an_event_that_cannot_be_shown_does_not_end_the_job() -> None:
    run = Run()
    run.starts()
    run.snapshot(7, hourly=cast(Any, "a time of a future version"))
    run.epoch(10)
    assert "snapshot 7" in run.progress.line()


def test_the_rate_is_that_of_the_last_seconds_and_falls_in_a_lull() -> None:
    run = Run()
    run.starts()
    run.epoch(1_000_000)
    for _ in range(10):
        run.epoch(1_000)
    assert "1.0 k rows/s" in run.progress.line()
    run.now += 3
    assert "  500 rows/s" in run.progress.line()
    run.now += 3_000
    assert "  1 rows/s" in run.progress.line()


def test_the_rate_of_long_epochs_does_not_swing_between_their_ends() -> None:
    run = Run()
    run.starts()
    for _ in range(10):
        run.epoch(60_000, seconds=6)
    assert "10 k rows/s" in run.progress.line()
    run.now += 5
    assert "7.8 k rows/s" in run.progress.line()


def test_rows_that_are_read_again_after_a_restart_are_not_counted_twice() -> None:
    run = Run()
    run.starts(rows_read=500)
    run.epoch(100)
    run.epoch(100)
    run.progress.note(ExecutionRestarting("shop", 1, "disk\nfull", 1, 10))
    assert "restarts: disk full" in run.progress.line()
    run.starts(rows_read=600)  # one epoch was in a snapshot
    assert "  100 rows  " in run.progress.line()
    run.epoch(100)
    assert "  200 rows  " in run.progress.line()


def test_a_source_that_is_waited_for_is_named_until_epochs_go_on() -> None:
    run = Run()
    run.starts()
    run.progress.note(SourceUnavailable("shop", "orders", 1, "refused"))
    assert "waits for orders" in run.progress.line()
    run.epoch(1)
    assert "waits" not in run.progress.line()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (JobStatus.COMPLETED, "completed"),
        (JobStatus.FAILED, "failed"),
        (JobStatus.SUSPENDED, "suspended"),
        (JobStatus.NOT_RUNNING, "ended"),
    ],
)
def test_the_summary(status: JobStatus, said: str) -> None:
    run = Run()
    run.starts()
    run.epoch(10_000, seconds=2)
    run.snapshot(7)
    assert run.progress.summary(is_over=False).startswith("shop  still runs: ")
    run.progress.note(ExecutionEnded("shop", 1, status, StopCause.COMPLETE, ""))
    assert run.progress.summary(is_over=True) == (
        f"shop  {said}: 10,000 rows in 2.0 s (5.0 k rows/s), 1 epochs, snapshot 7"
    )


def test_numbers_as_people_read_them() -> None:
    assert [count(n) for n in (0, 7, 999, 1_000, 12_345, 312_000, 4_560_000)] == [
        "0", "7", "999", "1.0 k", "12 k", "312 k", "4.6 M",
    ]  # fmt: skip


# --- of a job elsewhere ---------------------------------------------------------------------------


def elsewhere(snapshot_id: int) -> ExecutionRecord:
    lease = new_lease("o", 1_000, None, Activity(Doing.EPOCH, 5))
    ref = SnapshotRef(snapshot_id, snapshot_id, 1, "m", 0, NOON_MS, 0)
    return ExecutionRecord("shop", 1, JobStatus.RUNNING, snapshots=(ref,), lease=lease)


def manifest(ref: SnapshotRef) -> Manifest:
    rows = 1_000 * ref.snapshot_id
    counters = {"in": Counters(rows_in=rows), "out": Counters(rows_in=77)}
    watermarks = {"reached_ms": {"hourly": NOON_MS, "new": None}}
    return Manifest("shop", 1, 1, 1, 1, "", 4, {"in": {}}, watermarks, {}, (), counters)


def test_a_job_elsewhere_is_shown_by_what_it_leaves_in_the_store() -> None:
    now = 10.0
    progress = RemoteProgress(manifest, seconds=lambda: now)
    assert progress.line(elsewhere(4)) == (
        "shop  RUNNING  running an epoch  4,000 rows  watermark 2023-11-14 22:13:20  snapshot 4"
    )
    progress.line(elsewhere(5))
    now = 12.0
    assert "7,000 rows  1.0 k rows/s" in progress.line(elsewhere(7))
    now = 13.0
    assert progress.line(elsewhere(7)).endswith("snapshot 7, 1 s ago")
    assert progress.summary(elsewhere(7)) == "shop  RUNNING: 7,000 rows since it began, snapshot 7"


def test_what_a_job_elsewhere_reports_of_itself_is_newer_than_its_snapshot() -> None:
    source = SourceProgress(900, {}, {"rows": 4_000})
    stages = {"hourly": StageProgress(1, 1, watermark_ms=NOON_MS)}
    record = elsewhere(4)
    own = record.execution_id
    reports = {own: ProgressReport(1, rows_per_second=31.0, sources={"in": source}, stages=stages)}

    def gone(ref: SnapshotRef) -> Manifest:
        raise SnapshotInvalidError("missing.")

    line = RemoteProgress(gone, reports.get, lambda: 0.0).line(record)
    assert "900 rows  31 rows/s  lag 4.0 k rows  watermark 2023-11-14 22:13:20" in line
    reports = {own - 1: reports[own]}
    assert "rows/s" not in RemoteProgress(gone, reports.get, lambda: 0.0).line(record)


def test_a_snapshot_that_is_gone_already_is_passed_over() -> None:
    def gone(ref: Any) -> Manifest:
        raise SnapshotInvalidError("missing.")

    line = RemoteProgress(gone, seconds=lambda: 0.0).line(elsewhere(4))
    assert line == "shop  RUNNING  running an epoch  snapshot 4"
