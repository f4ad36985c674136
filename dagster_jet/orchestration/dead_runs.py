"""Runs whose worker is provably dead are reported as what they are, so that alerts go off.

Otherwise they stay "started" for ever, and the supervisor waits for some of them as for runs that
may take the job at any moment.
"""

from __future__ import annotations

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.run_worker import RunWorker


def report_dead_runs(instance: dg.DagsterInstance, launches: Launches) -> list[str]:
    """Report as failed (or as cancelled, if that was asked for) each run of the job that is dead.

    Returns:
        A sentence for each. Nothing else is changed: who has the job is in the store.
    """
    found = []
    for run in launches.with_worker(instance):
        worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
        if worker is None or not worker.is_gone:
            continue
        # Whatever it has reported itself is there by now: it reports nothing any more.
        newest = instance.get_run_by_id(run.run_id)
        if newest is None or newest.is_finished:
            continue
        why = (
            f"Process {worker.pid} on {worker.host}, which worked on this run, is gone, and so is "
            f"the one that started it. The supervisor of {launches.pipeline!r} has found out."
        )
        if newest.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(newest, why)
        else:
            instance.report_run_failed(newest, why)
        found.append(f"run {run.run_id} is dead: process {worker.pid} on {worker.host} is gone")
    return found
