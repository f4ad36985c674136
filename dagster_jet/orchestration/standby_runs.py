"""Runs that stand by for a job, as Dagster knows them, and requests for another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import Launches, UnendedRuns, hint
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.orchestration.sightings import BootTime, ObjectKind, Sightings, WatchedObject
from dagster_jet.orchestration.standby_decision import (
    StandbyDecision,
    StandbyRun,
    StandbySituation,
)
from dagster_jet.orchestration.supervisor import RunHint
from dagster_jet.ownership.supervision import Supervision, end_standbys, reserve_standby
from dagster_jet.snapshot.record import ExecutionRecord

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


@dataclass(frozen=True)
class StandbyRuns:
    """The runs of one job that stand by, at one tick.

    Attributes:
        launches: the job's runs.
        supervision: the newest request.
        runs: unfinished runs; how long each was seen is not known yet.
        requested: the run of the newest request; None if Dagster does not know it.
    """

    launches: Launches
    supervision: Supervision
    runs: tuple[StandbyRun, ...]
    requested: dg.DagsterRun | None

    @classmethod
    def of(
        cls,
        instance: dg.DagsterInstance,
        launches: Launches,
        unended: UnendedRuns,
        supervision: Supervision | None,
    ) -> StandbyRuns:
        """Picks them from the runs that have not ended, and reads the requested one."""
        return cls(
            launches,
            supervision or Supervision(launches.pipeline),
            tuple(_standby_run(run) for run in unended.standbys),
            launches.requested_standby(instance, supervision),
        )

    @property
    def waiting(self) -> str | None:
        """The run that takes the job over if its owner dies; None: there is none."""
        ending = self.supervision.replaced_standbys
        there = (run.run_id for run in self.runs if run.waits and not run.is_gone)
        return next((run_id for run_id in there if run_id not in ending), None)

    @property
    def _request(self) -> WatchedObject:
        mark = " queued" if hint(self.requested) is RunHint.QUEUED else ""
        return WatchedObject(ObjectKind.STANDBY, f"{self.supervision.standby}{mark}")

    @property
    def watched(self) -> list[WatchedObject]:
        """The objects whose age counts."""
        runs = [WatchedObject(ObjectKind.STANDBY, run.run_id) for run in self.runs]
        return [self._request, *runs]

    def situation(
        self,
        instance: dg.DagsterInstance,
        record: ExecutionRecord,
        definition: str,
        sightings: Sightings,
        now: BootTime,
    ) -> StandbySituation:
        """Returns the input of a decision.

        Args:
            instance: the Dagster instance.
            record: record of the execution that has the job.
            definition: digest of the definition that the supervisor has loaded.
            sightings: of this tick.
            now: time of the tick.
        """
        runs = [
            replace(
                run,
                seen_ms=sightings.age_ms(WatchedObject(ObjectKind.STANDBY, run.run_id), now),
            )
            for run in self.runs
        ]
        requested = self.requested
        return StandbySituation(
            record=record,
            supervision=self.supervision,
            runs=runs,
            requested_run=hint(requested),
            requested_id=None if requested is None else requested.run_id,
            waited_ms=sightings.age_ms(self._request, now),
            lasted_ms=None if requested is None else _lasted_ms(instance, requested),
            definition=definition,
        )

    def end(self, jet: Jet) -> StandbyDecision:
        """Asks the runs that a supervisor has requested to end; those of a person go on.

        Raises:
            StoreError: the store could not be written.
        """
        runs = [run.run_id for run in self.runs if run.is_requested and not run.is_gone]
        if not runs:
            return StandbyDecision("")
        if not set(runs) <= set(self.supervision.replaced_standbys):
            end_standbys(jet.store, self.launches.pipeline, runs)
        return StandbyDecision(f"; run {', '.join(runs)} is asked to end: no standby is wanted")

    def request(
        self,
        instance: dg.DagsterInstance,
        jet: Jet,
        decision: StandbyDecision,
        definition: str,
        tags: Mapping[str, str],
    ) -> dg.RunRequest | None:
        """Reserves a number in the store, and returns the request of its run; None if nothing is
        requested, or another tick was faster.

        Raises:
            StoreError: the store could not be asked.
        """
        if decision.attempts is None:
            return None
        reserved = reserve_standby(
            jet.store,
            self.launches.pipeline,
            self.supervision.standby,
            attempts=decision.attempts,
            definition=definition,
            replaces=decision.replaces,
            at_least=self.launches.unused_number(instance, keys.TAG_STANDBY),
        )
        if reserved is None:
            return None
        return dg.RunRequest(
            run_key=reserved.standby_run_key,
            tags={
                **tags,
                keys.TAG_KIND: keys.KIND_STANDBY,
                keys.TAG_PIPELINE: reserved.job,
                keys.TAG_JOB: self.launches.owner,
                keys.TAG_STANDBY: str(reserved.standby),
                keys.TAG_MAX_RUNTIME: "0",
            },
        )


def _standby_run(run: dg.DagsterRun) -> StandbyRun:
    worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
    found = StandbyRun(run.run_id, is_requested=keys.TAG_STANDBY in run.tags)
    if worker is None:
        return found
    return replace(
        found, waits=worker.stands_by, definition=worker.definition, is_gone=worker.is_dead
    )


def _lasted_ms(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    record = instance.get_run_record_by_id(run.run_id) if run.is_finished else None
    if record is None or record.start_time is None or record.end_time is None:
        return None
    return int(1000 * (record.end_time - record.start_time))
