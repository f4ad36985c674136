"""A job as the supervisor sees it at a tick: the store's record, Dagster's runs, their ages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.orchestration.dead_runs import fenced_runs
from dagster_jet.orchestration.launches import Launches, UnendedRuns, hint
from dagster_jet.orchestration.sightings import BootTime, ObjectKind, Sightings, WatchedObject
from dagster_jet.orchestration.standby_decision import StandbySituation
from dagster_jet.orchestration.standby_runs import StandbyRuns
from dagster_jet.orchestration.supervisor import RunHint, Situation
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.ownership.supervision import Supervision, read_supervision
from dagster_jet.snapshot.record import ExecutionRecord

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


@dataclass(frozen=True)
class ObservedJob:
    """A job at one tick.

    Attributes:
        situation: input of the decision about the job.
        standbys: the runs that stand by.
        fenced: the runs that have lost the job to another run, and how long seen, in ms.
        marks: what earlier ticks remembered about the definition that is loaded.
        before: sightings of the tick before.
        lease: the lease, which is another object after each renewal.
        request: the newest request.
        runs: all runs whose age counts.
        now: time of the tick.
    """

    situation: Situation
    standbys: StandbyRuns
    fenced: dict[str, int]
    marks: Collection[WatchedObject]
    before: Sightings
    lease: WatchedObject
    request: WatchedObject
    runs: tuple[WatchedObject, ...]
    now: BootTime

    def sightings(
        self, marks: Iterable[WatchedObject], reserved: Supervision | None = None
    ) -> Sightings:
        """Return the sightings of this tick.

        Args:
            marks: what to remember about the definition that is loaded.
            reserved: the request that this tick makes.
        """
        request = self.request if reserved is None else _request_of(reserved, RunHint.ABSENT)
        return self.before.after([self.lease, request, *self.runs, *marks], self.now)

    def standby_situation(
        self, instance: dg.DagsterInstance, record: ExecutionRecord, definition: str
    ) -> StandbySituation:
        """Return the input of the decision about a standby; see `StandbyRuns.situation`."""
        sightings = self.sightings(())
        return self.standbys.situation(instance, record, definition, sightings, self.now)


def observe(
    context: dg.SensorEvaluationContext,
    jet: Jet,
    launches: Launches,
    unended: UnendedRuns,
    definition: str,
    now: BootTime,
) -> ObservedJob:
    """Read a job's record and requests from the store, and the requested runs from Dagster.

    Args:
        context: context of the tick.
        jet: gives access to the store.
        launches: the job's runs.
        unended: those of them that have not ended.
        definition: digest of the definition that is loaded.
        now: time of the tick.

    Raises:
        StoreError: the store could not be read.
    """
    instance = context.instance
    record = read_record(jet.store, launches.pipeline)
    supervision = read_supervision(jet.store, launches.pipeline)
    launched = {run: WatchedObject(ObjectKind.RUN, run) for run in unended.unfinished}
    fenced = {
        run: WatchedObject(ObjectKind.FENCED, run)
        for run in fenced_runs(unended, record, launches.owner)
    }
    standbys = StandbyRuns.of(instance, launches, unended, supervision)
    requested = launches.requested(instance, supervision)
    lease, request = _lease_of(record), _request_of(supervision, hint(requested))
    runs = (*launched.values(), *fenced.values(), *standbys.watched)
    before = Sightings.from_cursor(context.cursor)
    sightings = before.after([lease, request, *runs], now)
    owner = record.lease if record is not None else None
    known = {owner.run_id if owner else None, requested.run_id if requested else None}
    situation = Situation(
        record=record,
        supervision=supervision,
        waited_ms=sightings.age_ms(request, now),
        lease_unchanged_ms=sightings.age_ms(lease, now),
        owner_alive=None if owner is None else is_owner_alive(owner),
        requested_run=hint(requested),
        launched={
            run: sightings.age_ms(seen, now) for run, seen in launched.items() if run not in known
        },
        standby=standbys.waiting,
    )
    ages = {run: sightings.age_ms(seen, now) for run, seen in fenced.items()}
    marks = before.about(definition)
    return ObservedJob(situation, standbys, ages, marks, before, lease, request, runs, now)


def _lease_of(record: ExecutionRecord | None) -> WatchedObject:
    lease = None if record is None else record.lease
    if record is None or lease is None:
        return WatchedObject(ObjectKind.LEASE, f"{record.execution_id if record else 0} none")
    return WatchedObject(ObjectKind.LEASE, f"{record.execution_id} {lease.renewed_at_ms}")


def _request_of(supervision: Supervision | None, run: RunHint) -> WatchedObject:
    """Return the watched request. It is another object once its run has left the queue, so that the
    time of the start counts from then on."""
    mark = " queued" if run is RunHint.QUEUED else ""
    generation = supervision.generation if supervision else 0
    return WatchedObject(ObjectKind.REQUEST, f"{generation}{mark}")
