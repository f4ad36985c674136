"""Jobs as other processes leave them in a store: no Spark."""

from __future__ import annotations

from typing import Any

from dagster_jet.observe.writing.kept_value import KeptValue
from dagster_jet.observe.writing.progress_report import ProgressReport
from dagster_jet.ownership.lease import new_lease, wall_clock_ms
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, record_register
from dagster_jet.snapshot.record import Activity, Doing, ExecutionRecord, JobStatus, Lease
from dagster_jet.store import Store


class StoredJob:
    """Job in a store: its record is written by the owner of a register, its report as a report
    keeper does."""

    def __init__(self, store: Store, name: str, execution_id: int = 1) -> None:
        directory = store.map(JOB_DIRECTORY)
        directory.put_all({directory.key(name): b""})
        self.name, self.execution_id = name, execution_id
        self._register = store.register(record_register(name)).claim(execution_id, "owner")
        self._progress = KeptValue(store, name, "progress", execution_id)

    def is_at(
        self, status: JobStatus, doing: Doing = Doing.IDLE, for_ms: int = 0, **fields: Any
    ) -> ExecutionRecord:
        record = ExecutionRecord(self.name, self.execution_id, status, **fields)
        if status.is_live:
            record = record.with_lease(living(Activity(doing, for_ms)))
        self._register.write(record.to_bytes())
        return record

    def reports(self, **fields: Any) -> None:
        now_ms = wall_clock_ms()
        fields.setdefault("started_ms", now_ms - 60_000)
        self._progress.write(ProgressReport(**fields, written_at_ms=now_ms).to_bytes())


def living(activity: Activity) -> Lease:
    return new_lease("owner", 60_000, "run-1", activity)
