"""Runs of a streaming job as Dagster knows them: who launched and who cancelled them.

Copied tags are not trusted: "Re-execute" and the launchpad copy all tags of a run, including the
generation of a supervisor's request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.supervisor import RunHint
from dagster_jet.ownership.supervision import Supervision
from dagster_jet.store import Store

_RUNS_LOOKED_AT = 500

_PENDING = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.MANAGED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
)


@dataclass(frozen=True)
class Launches:
    """The Dagster runs that execute one streaming job.

    Attributes:
        pipeline: name of the streaming job.
        job: name of the Dagster job that a supervisor launches.
        owner: the streaming job's `job_tag`. Runs that have another one belong to a job of the same
            name in another store or namespace.
    """

    pipeline: str
    job: str
    owner: str = ""

    def of(self, store: Store) -> Launches:
        """Return the launches of the streaming job in this store."""
        return replace(self, owner=job_tag(store, self.pipeline))

    def unfinished(self, instance: dg.DagsterInstance) -> tuple[str, ...]:
        """Return the ids of the runs that have the job or may take it at any time.

        A run that is being cancelled does not take the job. Until a run begins, only the Dagster
        job of the stream is recognized, and not "Materialize all".
        """
        runs = self._with_status(instance, *_PENDING, dg.DagsterRunStatus.STARTED)
        return tuple(run.run_id for run in runs)

    def may_report(self, instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
        """Return the runs that may still report: they have the job, may take it, or are ending."""
        canceling = dg.DagsterRunStatus.CANCELING
        return self._with_status(instance, *_PENDING, dg.DagsterRunStatus.STARTED, canceling)

    def with_worker(self, instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
        """Return the runs that have a worker process according to Dagster."""
        status = dg.DagsterRunStatus
        return self._with_status(instance, status.STARTING, status.STARTED, status.CANCELING)

    def _with_status(
        self, instance: dg.DagsterInstance, *statuses: dg.DagsterRunStatus
    ) -> list[dg.DagsterRun]:
        # Three queries that find few runs: an instance may have many unfinished runs of others.
        ways: list[dict[str, Any]] = [
            {"tags": {keys.TAG_JOB: self.owner}},
            {"tags": {keys.TAG_PIPELINE: self.pipeline}},
            {"job_name": self.job},
        ]
        found = {
            run.run_id: run
            for way in ways
            for run in instance.get_runs(
                dg.RunsFilter(statuses=statuses, **way), limit=_RUNS_LOOKED_AT
            )
        }
        return [run for run in found.values() if run.tags.get(keys.TAG_JOB) in (None, self.owner)]

    def requested(
        self, instance: dg.DagsterInstance, supervision: Supervision | None
    ) -> dg.DagsterRun | None:
        """Return the run of the newest request; None if Dagster does not know it (yet)."""
        if supervision is None or supervision.generation == 0:
            return None
        tags = {keys.TAG_JOB: self.owner, keys.TAG_GENERATION: str(supervision.generation)}
        # Later runs with this generation are copies.
        oldest = instance.get_runs(dg.RunsFilter(tags=tags), limit=1, ascending=True)
        return oldest[0] if oldest else None

    def unused_generation(self, instance: dg.DagsterInstance) -> int:
        """Return the first generation unknown to Dagster, which never launches a run key twice.

        Called only if the store knows no generation; a new store may have had a predecessor.
        """
        newest = instance.get_runs(
            dg.RunsFilter(tags={keys.TAG_PIPELINE: self.pipeline}), limit=_RUNS_LOOKED_AT
        )
        used = [int(r.tags[keys.TAG_GENERATION]) for r in newest if keys.TAG_GENERATION in r.tags]
        return max(used, default=0) + 1


def hint(run: dg.DagsterRun | None) -> RunHint:
    """Return Dagster's status of a requested run."""
    if run is None:
        return RunHint.ABSENT
    if run.status is dg.DagsterRunStatus.QUEUED:
        return RunHint.QUEUED
    if run.status in _PENDING:
        return RunHint.STARTING
    return RunHint.ENDED if run.is_finished else RunHint.STARTED


def job_tag(store: Store, job: str) -> str:
    """Return the value of `TAG_JOB` of a streaming job's runs."""
    return f"{store.store_id}/{store.config.namespace}/{job}"


def is_launched_by_hand(instance: dg.DagsterInstance, run: dg.DagsterRun, owner: str) -> bool:
    """Whether the run was launched by someone other than a supervisor or Dagster's own retries.

    Args:
        instance: the Dagster instance.
        run: the run in question.
        owner: the `job_tag` of the streaming job.
    """
    if keys.DAGSTER_RETRY_NUMBER in run.tags:
        return False
    generation = run.tags.get(keys.TAG_GENERATION)
    if generation is None or run.parent_run_id is not None:
        return True
    # The requested run is the oldest run with this generation.
    of_generation = dg.RunsFilter(tags={keys.TAG_JOB: owner, keys.TAG_GENERATION: generation})
    oldest = instance.get_runs(of_generation, limit=1, ascending=True)
    return not oldest or oldest[0].run_id != run.run_id


def is_cancelled_by_hand(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a user's *Terminate* caused the interrupt; Dagster does not record an eviction."""
    run = instance.get_run_by_id(run_id)
    return run is not None and run.status is dg.DagsterRunStatus.CANCELING
