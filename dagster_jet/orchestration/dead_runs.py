"""Reports runs whose worker is provably dead as failed, so that alerts fire.

Otherwise they stay "started" for ever, and the supervisor may wait for them to take the job.

The liveness of a process on another host, container or boot is unknown. But once another run has
fenced its execution, that process can decide nothing; if it lives, it notices at its next heartbeat
and ends. A run that still has not ended is reported as well.
"""

from __future__ import annotations

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import UnendedRuns
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.snapshot.record import ExecutionRecord


def fenced_runs(runs: UnendedRuns, record: ExecutionRecord | None, owner: str) -> tuple[str, ...]:
    """Return the ids of runs on other hosts whose execution another run's execution has fenced.

    A run that lives ends by itself shortly after; the caller waits for that.

    Args:
        runs: the runs that have not ended.
        record: the streaming job's record.
        owner: the streaming job's `job_tag`. A run of several pipelines may name the worker of
            another one, whose execution ids say nothing about this job.
    """
    lease = record.lease if record is not None else None
    if record is None or lease is None or lease.run_id is None:
        return ()
    found = []
    for run in runs.with_worker:
        worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
        if worker is None or not worker.is_elsewhere or run.run_id == lease.run_id:
            continue
        if worker.is_of(owner) and 0 < worker.execution_id < record.execution_id:
            found.append(run.run_id)
    return tuple(found)


def report_fenced_run(
    instance: dg.DagsterInstance, run_id: str, record: ExecutionRecord
) -> str | None:
    """Report a run of `fenced_runs` that has not ended in time as failed (or as cancelled).

    Returns:
        A sentence; None if the run has just ended.
    """
    assert record.lease is not None
    successor = f"execution {record.execution_id} of run {record.lease.run_id}"
    why = (
        f"{successor} has taken the job {record.job!r} over from this run, and the run has not "
        "ended since: its process is gone or hangs. The new execution continues from the last "
        "decided snapshot."
    )
    if not _report(instance, run_id, why):
        return None
    return f"run {run_id} is dead: {successor} has fenced it, and its process has not ended it"


def report_dead_runs(
    instance: dg.DagsterInstance, pipeline: str, runs: UnendedRuns
) -> dict[str, str]:
    """Report each dead run of the job as failed, or as cancelled if that was requested.

    Returns:
        One sentence per run, by its id. Nothing else changes: the store says which run has the job.
    """
    found = {}
    for run in runs.with_worker:
        worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
        if worker is None or not worker.is_gone:
            continue
        why = (
            f"Process {worker.pid} on {worker.host}, which executed this run, is gone, and so is "
            f"the process that started it. The supervisor of {pipeline!r} has detected this."
        )
        if _report(instance, run.run_id, why):
            said = f"run {run.run_id} is dead: process {worker.pid} on {worker.host} is gone"
            found[run.run_id] = said
    return found


def _report(instance: dg.DagsterInstance, run_id: str, why: str) -> bool:
    # Read the status again: the run is dead and adds no further event of its own.
    newest = instance.get_run_by_id(run_id)
    if newest is None or newest.is_finished:
        return False
    if newest.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(newest, why)
    else:
        instance.report_run_failed(newest, why)
    return True
