"""Computes a job's result from its record and the totals of its stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dagster_jet.execution.events import StageProgress
from dagster_jet.jobs.job import JobResult
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.record import ExecutionRecord

Totals = Mapping[str, Counters | StageProgress]
"""Totals of every source, stateful stage and sink by name, since the job began."""


def result_of(
    record: ExecutionRecord,
    totals: Totals,
    *,
    sources: Iterable[str],
    sinks: Iterable[str],
    epochs: int = 0,
    ignored_input: Mapping[str, Mapping[str, int]] | None = None,
) -> JobResult:
    """Return the result of the job with this record."""
    return JobResult(
        status=record.status,
        rows_in=sum(totals[name].rows_in for name in sources if name in totals),
        rows_out=sum(totals[name].rows_out for name in sinks if name in totals),
        rows_rejected=sum(stage.rejected for stage in totals.values()),
        counted={name: stage.counted for name, stage in totals.items() if stage.counted},
        snapshot_id=record.snapshot.snapshot_id if record.snapshot else None,
        epochs=epochs,
        restarts=record.restarts,
        ignored_input=ignored_input or {},
    )
