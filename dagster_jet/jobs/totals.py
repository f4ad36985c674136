"""Computes a job's result from its record and the totals of its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from dagster_jet.core.measures import Measures, counters_of, distributions_of, gauges_of
from dagster_jet.execution.events import StageProgress
from dagster_jet.jobs.job import JobResult
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.record import ExecutionRecord

V = TypeVar("V")
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
        counted=_each(counters_of, totals),
        gauges=_each(gauges_of, totals),
        histograms=_each(distributions_of, totals),
        snapshot_id=record.snapshot.snapshot_id if record.snapshot else None,
        epochs=epochs,
        restarts=record.restarts,
        ignored_input=ignored_input or {},
    )


def _each(chosen: Callable[[Measures], dict[str, V]], totals: Totals) -> dict[str, dict[str, V]]:
    """By stage, those metrics of its functions."""
    found = {}
    for name, stage in totals.items():
        measured = stage.measured if isinstance(stage, StageProgress) else {}
        found[name] = chosen({**stage.counted, **measured})
    return {name: some for name, some in found.items() if some}
