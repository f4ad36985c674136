"""Progress of a job of another process in one line, from its record, report and newest manifest."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dagster_jet.core.moments import moment
from dagster_jet.errors import JetError
from dagster_jet.observe.reading.run_progress import count, lag_of
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.record import ExecutionRecord, SnapshotRef

_ASK_EVERY_S = 1.0


@dataclass
class RemoteProgress:
    """Progress during one wait.

    Args:
        load: reads a snapshot's manifest.
        report: reads the newest report of an execution, which is more recent than the manifest;
            None: there is none.
        seconds: a monotonic clock.
    """

    load: Callable[[SnapshotRef], Manifest]
    report: Callable[[int], ProgressReport | None] = lambda execution_id: None
    seconds: Callable[[], float] = time.monotonic
    _snapshot_id: int | None = None
    _seen_at: float | None = None
    """When a new snapshot was first seen, by our clock (the owner's may differ). None: not yet."""
    _rows: int | None = None
    _rate: str = ""
    _watermark: str = ""
    _lag: str = ""
    _asked_at: float = float("-inf")
    """Time of the last read of the report."""

    def line(self, record: ExecutionRecord) -> str:
        """The current line."""
        if record.snapshot is not None and record.snapshot.snapshot_id != self._snapshot_id:
            self._note(record.snapshot)
        if self.seconds() - self._asked_at >= _ASK_EVERY_S:
            self._asked_at = self.seconds()
            self._note_report(record.execution_id)
        parts = [record.job, record.status.value]
        if record.lease is not None and record.lease.activity is not None:
            parts.append(record.lease.activity.doing.value)
        if self._rows is not None:
            parts.append(f"{self._rows:,} rows")
        parts += [self._rate, self._lag, self._watermark]
        if record.snapshot is not None:
            ago = "" if self._seen_at is None else f", {self.seconds() - self._seen_at:.0f} s ago"
            parts.append(f"snapshot {record.snapshot.snapshot_id}{ago}")
        return "  ".join(part for part in parts if part)

    def summary(self, record: ExecutionRecord | None) -> str:
        """Final summary line."""
        if record is None:
            return "no such job"
        rows = "" if self._rows is None else f": {self._rows:,} rows since it began"
        snapshot = f", snapshot {record.snapshot.snapshot_id}" if record.snapshot else ""
        return f"{record.job}  {record.status.value}{rows}{snapshot}"

    def _note_report(self, execution_id: int) -> None:
        with suppress(JetError):  # the next one is used
            report = self.report(execution_id)
            if report is None or not report.sources:
                return
            self._rows = sum(source.rows_read for source in report.sources.values())
            self._rate = f"{count(report.rows_per_second)} rows/s"
            self._lag = lag_of(report.sources.values())
            known = [s.watermark_ms for s in report.stages.values() if s.watermark_ms is not None]
            self._watermark = f"watermark {moment(min(known))}" if known else ""

    def _note(self, ref: SnapshotRef) -> None:
        is_first = self._snapshot_id is None
        before, at, now = self._rows, self._seen_at, self.seconds()
        self._snapshot_id = ref.snapshot_id
        if not is_first:
            self._seen_at = now
        with suppress(JetError):  # it was replaced meanwhile; the next one is used
            manifest = self.load(ref)
            self._rows = sum(
                counters.rows_in
                for name, counters in manifest.counters.items()
                if name in manifest.sources
            )
            self._watermark = _watermark(manifest.watermarks)
        if before is not None and at is not None and self._rows is not None and now > at:
            self._rate = f"{count((self._rows - before) / (now - at))} rows/s"


def _watermark(saved: dict[str, Any]) -> str:
    reached = [ms for ms in saved.get("reached_ms", {}).values() if ms is not None]
    return f"watermark {moment(min(reached))}" if reached else ""
