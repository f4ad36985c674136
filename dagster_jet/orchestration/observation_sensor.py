"""A sensor that brings into Dagster's event log the commits that it has missed.

Commit first, report second: a run worker that is killed in between leaves rows in the sinks of
which Dagster knows nothing until the next run, and a job that runs outside of Dagster reports
nothing at all. The store knows both.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_job import stream_of
from dagster_jet.orchestration.committed_snapshot import newest_commit
from dagster_jet.orchestration.dagster_name import dagster_name
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.reported_assets import asset_reports
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.orchestration.sightings import Clock, Moment, Sightings, Thing, What
from dagster_jet.orchestration.tick import jet_of_tick, required_key
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.record import ExecutionRecord

if TYPE_CHECKING:
    from dagster_jet.jet import Jet

PATIENCE_MS = 180_000
"""How long a run without the job is taken for one that may still report: it starts, or it ends."""


def build_jet_observation_sensor(
    assets: dg.AssetsDefinition,
    *,
    jet: JetResource | str = "jet",
    name: str | None = None,
    minimum_interval_seconds: int = 60,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that reports commits of a pipeline that no run has reported, each once.

    Of a run whose worker was killed after a commit; and of a job that is run by plain Python, by
    another Dagster, or by the CLI. Such a commit becomes materializations (``replayed``), like
    those of a run. A run that lives reports itself, and is left alone.

    Only the newest commit is reported: its totals contain those before it. What Dagster knows
    already, by its rows, is never reported twice, whatever becomes of the cursor.

    Args:
        assets: what `@jet_assets` made.
        jet: the `JetResource`, or the key it has in the definitions.
        name: the sensor's name; the pipeline's name plus ``_observations`` by default.
        minimum_interval_seconds: between ticks. An event costs Dagster 9 KB, for ever.
        default_status: whether it is on when first loaded.

    Raises:
        ConfigurationError: `assets` was not made by `jet_assets`, or has partitions: the next run
            of a partition reports what an earlier one has done.
    """
    pipeline = stream_of(assets, "an observation sensor")
    base = dagster_name(pipeline.name)
    watched = Watched(assets, pipeline)

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with jet_of_tick(jet, context) as opened:
            return report_missed(context, opened, watched)

    return dg.SensorDefinition(
        name=name or f"{base}_observations",
        evaluation_fn=tick,
        minimum_interval_seconds=minimum_interval_seconds,
        description=f"Reports commits of the streaming job `{pipeline.name}` that no run reported.",
        default_status=default_status,
        required_resource_keys=required_key(jet),
    )


@dataclass(frozen=True)
class Watched:
    """The assets of a pipeline, and the runs that may report on them."""

    assets: dg.AssetsDefinition
    pipeline: Pipeline
    launches: Launches = field(init=False)

    def __post_init__(self) -> None:
        job, asset_keys = f"{dagster_name(self.pipeline.name)}_job", frozenset(self.assets.keys)
        object.__setattr__(self, "launches", Launches(self.pipeline.name, job, asset_keys))


@dataclass(frozen=True)
class Reported:
    """The cursor: the commit that is known to Dagster, and the runs that are waited for."""

    commit: str = ""
    sightings: Sightings = field(default_factory=Sightings)

    def to_cursor(self) -> str:
        return json.dumps({"commit": self.commit, "sightings": self.sightings.to_cursor()})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Reported:
        """Reads a cursor; one that cannot be read means: Dagster's log has to be asked."""
        try:
            fields = json.loads(cursor or "{}")
            return cls(str(fields["commit"]), Sightings.from_cursor(str(fields["sightings"])))
        except (ValueError, TypeError, KeyError):
            return cls()


def report_missed(
    context: dg.SensorEvaluationContext, jet: Jet, watched: Watched, clock: Clock = Moment.now
) -> dg.SensorResult:
    """One tick.

    Crash window: the daemon stores the events first and the cursor after them. Where it dies in
    between the next tick finds the events in the log.

    Raises:
        StoreError: the store could not be asked.
    """
    job, before = watched.pipeline.name, Reported.from_cursor(context.cursor)
    found = newest_commit(jet, job)
    if found is None:
        return dg.SensorResult(skip_reason=f"{job!r}: nothing is committed yet")
    commit = f"{jet.store.store_id} {found.record.timeline} {found.ref.snapshot_id}"
    who, sightings = _who_reports(
        context.instance, watched.launches, found.record, before.sightings, clock()
    )
    if who is not None:
        left = Reported(before.commit, sightings)
        return dg.SensorResult(skip_reason=f"{job!r}: {who}", cursor=left.to_cursor())
    cursor = Reported(commit, sightings).to_cursor()
    known = dg.SensorResult(
        skip_reason=f"{job!r}: snapshot {found.ref.snapshot_id} is known", cursor=cursor
    )
    if commit == before.commit:
        return known
    reports = asset_reports(
        watched.pipeline, watched.assets.metadata_by_key, context.instance, is_running=False
    )
    event = found.as_restored(watched.pipeline.graph)
    events = [*reports.missed(event, time.time_ns() // 1_000_000)]
    return dg.SensorResult(asset_events=events, cursor=cursor) if events else known


def _who_reports(
    instance: dg.DagsterInstance,
    launches: Launches,
    record: ExecutionRecord,
    seen: Sightings,
    now: Moment,
) -> tuple[str | None, Sightings]:
    """Say which run reports the job's commits itself, and what is known of the others.

    The run that has the job does. One that has not may be about to take it, or about to say its
    last word; but if it was killed hard Dagster calls it started for days, so that it is waited
    for only so long as either may take.
    """
    owner = record.lease.run_id if record.lease is not None and record.status.is_live else None
    others: dict[str, Thing] = {}
    for run in launches.may_report(instance):
        if run.run_id == owner:
            return f"run {owner} has the job, and reports itself", seen.after([], now)
        worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
        if worker is None or not worker.is_gone:
            others[run.run_id] = Thing(What.RUN, run.run_id)
    seen = seen.after(others.values(), now)
    for run_id, thing in others.items():
        if seen.age_ms(thing, now) < PATIENCE_MS:
            return f"run {run_id} may report it itself", seen
    return None, seen
