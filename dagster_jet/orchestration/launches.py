"""Who launched a run, and who wanted it down: what Dagster knows, without believing copied tags.

'Re-execute' and the launchpad copy a run's tags, the generation of a supervisor's request too.
"""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from dagster_jet.jobs.supervision import Supervision
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.supervisor import RunHint

_RUNS_LOOKED_AT = 500

_PENDING = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.MANAGED,
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
)


@dataclass(frozen=True)
class Launches:
    """The runs that drive one streaming job, as Dagster knows them.

    Attributes:
        pipeline: the streaming job's name.
        job: the Dagster job that a supervisor launches.
        asset_keys: of the pipeline: a person may materialize them without that job.
    """

    pipeline: str
    job: str
    asset_keys: frozenset[dg.AssetKey] = frozenset()

    def unfinished(self, instance: dg.DagsterInstance) -> tuple[str, ...]:
        """Return the ids of the runs that have the job or may take it at any moment.

        A run that is being cancelled takes nothing any more.
        """
        runs = self._with_status(instance, *_PENDING, dg.DagsterRunStatus.STARTED)
        return tuple(run.run_id for run in runs)

    def may_report(self, instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
        """Return the runs that have the job, may take it, or have not said their last word."""
        canceling = dg.DagsterRunStatus.CANCELING
        return self._with_status(instance, *_PENDING, dg.DagsterRunStatus.STARTED, canceling)

    def with_worker(self, instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
        """Return the runs of which Dagster says that a process works on them."""
        status = dg.DagsterRunStatus
        return self._with_status(instance, status.STARTING, status.STARTED, status.CANCELING)

    def _with_status(
        self, instance: dg.DagsterInstance, *statuses: dg.DagsterRunStatus
    ) -> list[dg.DagsterRun]:
        runs = instance.get_runs(dg.RunsFilter(statuses=statuses), limit=_RUNS_LOOKED_AT)
        return [run for run in runs if self._is_ours(run)]

    def _is_ours(self, run: dg.DagsterRun) -> bool:
        if run.tags.get(keys.TAG_PIPELINE) == self.pipeline or run.job_name == self.job:
            return True
        return bool(self.asset_keys & (run.asset_selection or frozenset()))

    def requested(
        self, instance: dg.DagsterInstance, supervision: Supervision | None
    ) -> dg.DagsterRun | None:
        """Return the run of the newest request; None if Dagster does not know it (yet)."""
        if supervision is None or supervision.generation == 0:
            return None
        tags = {
            keys.TAG_PIPELINE: self.pipeline,
            keys.TAG_GENERATION: str(supervision.generation),
        }
        # Later runs with this generation are copies.
        oldest = instance.get_runs(dg.RunsFilter(tags=tags), limit=1, ascending=True)
        return oldest[0] if oldest else None

    def unused_generation(self, instance: dg.DagsterInstance) -> int:
        """Return the first generation Dagster has not seen: a run key is skipped for ever.

        Asked only when the store knows of no generation, which after a new store does not mean that
        there was none.
        """
        newest = instance.get_runs(
            dg.RunsFilter(tags={keys.TAG_PIPELINE: self.pipeline}), limit=_RUNS_LOOKED_AT
        )
        used = [int(r.tags[keys.TAG_GENERATION]) for r in newest if keys.TAG_GENERATION in r.tags]
        return max(used, default=0) + 1


def hint(run: dg.DagsterRun | None) -> RunHint:
    """Return what Dagster says about a run that was requested."""
    if run is None:
        return RunHint.ABSENT
    if run.status in _PENDING:
        return RunHint.PENDING
    return RunHint.ENDED if run.is_finished else RunHint.STARTED


def is_launched_by_hand(instance: dg.DagsterInstance, run: dg.DagsterRun, pipeline: str) -> bool:
    """Did somebody else than a supervisor or Dagster's own retries want this run?

    Args:
        instance: Dagster's.
        run: the run that asks.
        pipeline: the streaming job's name.
    """
    if keys.DAGSTER_RETRY_NUMBER in run.tags:
        return False
    generation = run.tags.get(keys.TAG_GENERATION)
    if generation is None or run.parent_run_id is not None:
        return True
    # Of all runs with this generation the one that was requested is the oldest.
    of_generation = dg.RunsFilter(
        tags={keys.TAG_PIPELINE: pipeline, keys.TAG_GENERATION: generation}
    )
    oldest = instance.get_runs(of_generation, limit=1, ascending=True)
    return bool(oldest) and oldest[0].run_id != run.run_id


def is_cancelled_by_hand(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Does the interrupt come from a user's *Terminate*? An eviction is not written down."""
    run = instance.get_run_by_id(run_id)
    return run is not None and run.status is dg.DagsterRunStatus.CANCELING
