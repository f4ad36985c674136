"""Runs of a streaming job as Dagster knows them: who launched and who cancelled them.

Copied tags are not trusted: "Re-execute" and the launchpad copy all tags of a run, including the
generation of a supervisor's request.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
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


_UNENDED = (*_PENDING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


@dataclass(frozen=True)
class UnendedRuns:
    """The runs of one streaming job that had not ended when Dagster was asked."""

    runs: tuple[dg.DagsterRun, ...]

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The ids of the runs that have the job or may take it at any time.

        A run that is being cancelled does not take the job, and one that stands by does so only if
        the owner is gone.
        """
        canceling = dg.DagsterRunStatus.CANCELING
        return tuple(run.run_id for run in self.may_report if run.status is not canceling)

    @property
    def standbys(self) -> tuple[dg.DagsterRun, ...]:
        """The runs that have left the queue and stand by, or are about to."""
        status = dg.DagsterRunStatus
        left = (status.NOT_STARTED, status.STARTING, status.STARTED)
        return tuple(run for run in self.runs if _stands_by(run) and run.status in left)

    @property
    def may_report(self) -> tuple[dg.DagsterRun, ...]:
        """The runs that may still report: they have the job, may take it, or are ending."""
        return tuple(run for run in self.runs if not _stands_by(run))

    @property
    def with_worker(self) -> tuple[dg.DagsterRun, ...]:
        """The runs that have a worker process according to Dagster."""
        status = dg.DagsterRunStatus
        with_worker = (status.STARTING, status.STARTED, status.CANCELING)
        return tuple(run for run in self.runs if run.status in with_worker)

    def without(self, run_ids: Container[str]) -> UnendedRuns:
        return UnendedRuns(tuple(run for run in self.runs if run.run_id not in run_ids))


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

    def unended(self, instance: dg.DagsterInstance) -> UnendedRuns:
        """Return the job's runs that have not ended, by three queries.

        Until a run begins, only the Dagster job of the stream is recognized, and not "Materialize
        all". The queries find few runs: an instance may have many unfinished runs of others.
        """
        ways: list[dict[str, Any]] = [
            {"tags": {keys.TAG_JOB: self.owner}},
            {"tags": {keys.TAG_PIPELINE: self.pipeline}},
            {"job_name": self.job},
        ]
        found = {
            run.run_id: run
            for way in ways
            for run in instance.get_runs(
                dg.RunsFilter(statuses=_UNENDED, **way), limit=_RUNS_LOOKED_AT
            )
        }
        own = (None, self.owner)
        return UnendedRuns(
            tuple(run for run in found.values() if run.tags.get(keys.TAG_JOB) in own)
        )

    def requested(
        self, instance: dg.DagsterInstance, supervision: Supervision | None
    ) -> dg.DagsterRun | None:
        """Return the run of the newest request; None if Dagster does not know it (yet)."""
        number = 0 if supervision is None else supervision.generation
        return _requested(instance, self.owner, keys.TAG_GENERATION, number)

    def requested_standby(
        self, instance: dg.DagsterInstance, supervision: Supervision | None
    ) -> dg.DagsterRun | None:
        """Return the run of the newest request for a standby; None if Dagster does not know it."""
        number = 0 if supervision is None else supervision.standby
        return _requested(instance, self.owner, keys.TAG_STANDBY, number)

    def unused_number(self, instance: dg.DagsterInstance, tag: str) -> int:
        """Return the first number of a request unknown to Dagster, which never launches a run key
        twice.

        A new store may have had a predecessor, and one restored from a copy is older than Dagster.

        Args:
            instance: the Dagster instance.
            tag: the tag that has the number.
        """
        newest = instance.get_runs(
            dg.RunsFilter(tags={keys.TAG_PIPELINE: self.pipeline}), limit=_RUNS_LOOKED_AT
        )
        numbers = (run.tags.get(tag, "") for run in newest)
        return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


def _stands_by(run: dg.DagsterRun) -> bool:
    return run.tags.get(keys.TAG_KIND) == keys.KIND_STANDBY


def _requested(
    instance: dg.DagsterInstance, owner: str, tag: str, number: int
) -> dg.DagsterRun | None:
    """Return the oldest run with this number: later ones are copies."""
    if number == 0:
        return None
    wanted = dg.RunsFilter(tags={keys.TAG_JOB: owner, tag: str(number)})
    oldest = instance.get_runs(wanted, limit=1, ascending=True)
    return oldest[0] if oldest else None


def hint(run: dg.DagsterRun | None) -> RunHint:
    """Return Dagster's status of a requested run."""
    if run is None:
        return RunHint.ABSENT
    if run.status is dg.DagsterRunStatus.QUEUED:
        return RunHint.QUEUED
    if run.status in _PENDING:
        return RunHint.STARTING
    return RunHint.ENDED if run.is_finished else RunHint.STARTED


def waiting_run(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> str | None:
    """Return the id of a queued run with these tags, if any.

    A run that was created and not queued does not count: a daemon that died meanwhile submits it
    only if the same tick requests it again.
    """
    waiting = dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED], tags={**tags})
    runs = instance.get_runs(waiting, limit=1)
    return runs[0].run_id if runs else None


def job_tag(store: Store, job: str) -> str:
    """Return the value of `TAG_JOB` of a streaming job's runs."""
    return f"{store.store_id}/{store.config.namespace}/{job}"


def is_launched_by_hand(instance: dg.DagsterInstance, run: dg.DagsterRun, owner: str) -> bool:
    """Whether the run was launched by someone other than a supervisor, a schedule or Dagster's own
    retries.

    Args:
        instance: the Dagster instance.
        run: the run in question.
        owner: the `job_tag` of the streaming job.
    """
    if keys.DAGSTER_RETRY_NUMBER in run.tags or is_scheduled(run):
        return False
    tag = keys.TAG_STANDBY if keys.TAG_STANDBY in run.tags else keys.TAG_GENERATION
    if tag not in run.tags or run.parent_run_id is not None:
        return True
    oldest = _requested(instance, owner, tag, int(run.tags[tag]))
    return oldest is None or oldest.run_id != run.run_id


def is_scheduled(run: dg.DagsterRun) -> bool:
    """Whether a schedule launched the run, or the one that Dagster's own retries repeat with it."""
    is_copy = run.parent_run_id is not None and keys.DAGSTER_RETRY_NUMBER not in run.tags
    return keys.DAGSTER_SCHEDULE_NAME in run.tags and not is_copy


def is_cancelled_by_hand(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a user's *Terminate* caused the interrupt; Dagster does not record an eviction.

    A forced one marks the run as cancelled at once. Nothing else does so while its process lives,
    unless a user's cancel takes longer than Dagster waits.
    """
    run, status = instance.get_run_by_id(run_id), dg.DagsterRunStatus
    return run is not None and run.status in (status.CANCELING, status.CANCELED)
