"""Overview of all jobs of a store: activity and lag."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import JetError
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.observe.writing.report_keeper import read_report
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.ownership.liveness import LeaseWatch, as_lost
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, read_record
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from dagster_jet.store import Store

_LOOKS_AT_ONCE = 16


@dataclass(frozen=True)
class JobOverview:
    """One job. None: not known, or there is none.

    Attributes:
        job: the job's name.
        status: NOT_RUNNING for a job whose owner is gone.
        doing: activity of a living execution, or why there is none; for people.
        rows_per_second: read from sources, over the last seconds.
        lag: waiting input of all sources together, by unit.
        watermark_lag_ms: lag of the least watermark of its stages behind the clock.
        epoch_ms: duration of the last epoch.
        snapshot_age_ms: time since the newest snapshot was taken.
        restarts: executions that followed one that had ended unrequested.
    """

    job: str
    status: JobStatus
    doing: str
    rows_per_second: float | None = None
    lag: Mapping[str, float] = field(default_factory=dict)
    watermark_lag_ms: int | None = None
    epoch_ms: float | None = None
    snapshot_age_ms: int | None = None
    restarts: int = 0

    def to_json(self) -> dict[str, Any]:
        """For programs: plain values only."""
        return {**asdict(self), "status": self.status.value}


def overview_of(record: ExecutionRecord, report: ProgressReport | None, now_ms: int) -> JobOverview:
    """Summarises a job. Pure.

    Args:
        record: the record after the check of its lease (`ownership.liveness`).
        report: the newest one of its execution; measurements are shown for a living execution only.
        now_ms: wall clock.
    """
    lease, snapshot = record.lease, record.snapshot
    activity = lease.activity if lease is not None else None
    doing = str(activity) if activity is not None else record.failure or ""
    if not doing and record.cause is not None:
        doing = record.cause.value
    age_ms = None if snapshot is None else max(0, now_ms - snapshot.taken_at_ms)
    restarts = record.restarts
    if report is None or not record.status.is_live:
        return JobOverview(
            record.job, record.status, doing, snapshot_age_ms=age_ms, restarts=restarts
        )
    lag: dict[str, float] = {}
    for source in report.sources.values():
        for unit, number in source.lag.items():
            lag[unit] = lag.get(unit, 0) + number
    watermarks = [s.watermark_ms for s in report.stages.values() if s.watermark_ms is not None]
    least_ms = min(watermarks, default=FINAL_WATERMARK_MS)
    return JobOverview(
        job=record.job,
        status=record.status,
        doing=doing,
        rows_per_second=report.rows_per_second,
        lag=lag,
        watermark_lag_ms=None if least_ms >= FINAL_WATERMARK_MS else now_ms - least_ms,
        epoch_ms=report.last_epoch_ms,
        snapshot_age_ms=age_ms,
        restarts=restarts,
    )


class Overviews:
    """Observes all jobs of a store repeatedly. One thread.

    A job whose lease is not renewed for its time to live counts as dead; no call waits for that.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watches: dict[str, LeaseWatch] = {}

    def look(self) -> list[JobOverview]:
        """Returns the jobs as they are now, sorted by name.

        Raises:
            StoreUnavailableError: too few members of the store answer.
        """
        names = sorted(key.name for key in self._store.map(JOB_DIRECTORY).keys(""))
        self._watches = {name: self._watches.get(name) or LeaseWatch() for name in names}
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as looks:
            found = list(looks.map(self._look_at, names))
        return [overview for overview in found if overview is not None]

    def _look_at(self, name: str) -> JobOverview | None:
        record = read_record(self._store, name)
        if record is None:
            return None
        if record.status.is_live and self._watches[name].sees(record) is False:
            record = as_lost(record)
        report = None
        with suppress(JetError):  # of a newer version, or not readable now
            found = read_report(self._store, name)
            if found is not None and found[0] == record.execution_id:
                report = found[1]
        return overview_of(record, report, wall_clock_ms())
