"""Sensor that reports commits which are missing in Dagster's event log.

A commit precedes its report: if a run worker is killed in between, Dagster does not know of the
rows until the next run. A job outside of Dagster is not reported at all. The store knows both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_job import stream_of
from dagster_jet.orchestration.committed_snapshot import newest_commit
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.defined_pipeline import assets_in
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.reported_assets import asset_reports
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.orchestration.sightings import (
    BootTime,
    Clock,
    ObjectKind,
    Sightings,
    WatchedObject,
)
from dagster_jet.orchestration.tick import jet_of_tick, required_key
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.record import ExecutionRecord

if TYPE_CHECKING:
    from dagster_jet.jet import Jet

PATIENCE_MS = 180_000
"""Maximum wait for a report by a run without the job, which may be starting or ending."""


def build_jet_observation_sensor(
    assets: dg.AssetsDefinition,
    *,
    jet: JetResource | str = "jet",
    name: str | None = None,
    minimum_interval_seconds: int = 60,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that reports each commit of a pipeline that no run has reported, once.

    Such commits come from a run whose worker was killed after the commit, or from a job that is run
    by plain Python, by another Dagster, or by the CLI. They become materializations marked
    ``replayed``. A live run reports its own commits and is not interfered with.

    Only the newest commit is reported, because its totals include earlier ones. Rows that Dagster
    already knows are not reported again, even if the cursor is lost.

    Args:
        assets: the result of `@jet_assets`.
        jet: the `JetResource`, or its key in the definitions.
        name: the sensor's name; by default the pipeline's name plus ``_observations``.
        minimum_interval_seconds: minimum time between ticks. Dagster keeps 9 KB per event for ever.
        default_status: status of the sensor when it is first loaded.

    Raises:
        ConfigurationError: `assets` was not made by `jet_assets`, or has partitions; commits of a
            partition are reported by its next run.
    """
    pipeline = stream_of(assets, "an observation sensor")
    base = dagster_name(pipeline.name)
    watched = Watched(assets, pipeline)

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with jet_of_tick(jet, context) as opened:
            found = assets_in(context.repository_def, pipeline.name)
            return report_missed(context, opened, Watched(found, pipeline) if found else watched)

    return dg.SensorDefinition(
        name=given_name(name, f"{base}_observations"),
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
        job = f"{dagster_name(self.pipeline.name)}_job"
        object.__setattr__(self, "launches", Launches(self.pipeline.name, job))


@dataclass(frozen=True)
class Reported:
    """Cursor: the newest commit that Dagster knows, and the runs that are waited for."""

    commit: str = ""
    sightings: Sightings = field(default_factory=Sightings)

    def to_cursor(self) -> str:
        return json.dumps({"commit": self.commit, "sightings": self.sightings.to_cursor()})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Reported:
        """Parses a cursor; after an unreadable one Dagster's log is read."""
        try:
            fields = json.loads(cursor or "{}")
            return cls(str(fields["commit"]), Sightings.from_cursor(str(fields["sightings"])))
        except (ValueError, TypeError, KeyError):
            return cls()


def report_missed(
    context: dg.SensorEvaluationContext, jet: Jet, watched: Watched, clock: Clock = BootTime.now
) -> dg.SensorResult:
    """Evaluates one tick.

    Crash window: the daemon stores the events before the cursor. If it dies in between, the next
    tick finds the events in the log.

    Raises:
        StoreError: the store could not be read.
    """
    job, before = watched.pipeline.name, Reported.from_cursor(context.cursor)
    found = newest_commit(jet, job)
    if found is None:
        return dg.SensorResult(skip_reason=f"{job!r}: nothing is committed yet")
    commit = f"{jet.store.store_id} {found.record.timeline} {found.version}{found.held_mark}"
    who, sightings = _who_reports(
        context.instance, watched.launches.of(jet.store), found.record, before.sightings, clock()
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
    reports = asset_reports(watched.pipeline, watched.assets, context.instance, is_running=False)
    event = found.as_restored(watched.pipeline.graph)
    events = [*reports.missed(event, wall_clock_ms())]
    return dg.SensorResult(asset_events=events, cursor=cursor) if events else known


def _who_reports(
    instance: dg.DagsterInstance,
    launches: Launches,
    record: ExecutionRecord,
    seen: Sightings,
    now: BootTime,
) -> tuple[str | None, Sightings]:
    """Return why a run will report the job's commits itself, if any, and the updated sightings.

    The run that has the job reports. Another run may be about to take the job or to send its final
    report. But Dagster shows a run that was killed hard as started for days, so it is waited for
    only as long as a start or an end may take.
    """
    owner = record.lease.run_id if record.lease is not None and record.status.is_live else None
    # By its id: the tags of a run of several pipelines may name another one's job.
    run = None if owner is None else instance.get_run_by_id(owner)
    if run is not None and not run.is_finished:
        return f"run {owner} runs the job, and reports its commits itself", seen.after([], now)
    others: dict[str, WatchedObject] = {}
    for run in launches.unended(instance).may_report:
        worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
        if worker is None or not worker.is_gone:
            others[run.run_id] = WatchedObject(ObjectKind.RUN, run.run_id)
    seen = seen.after(others.values(), now)
    for run_id, watched in others.items():
        if seen.age_ms(watched, now) < PATIENCE_MS:
            return f"run {run_id} may report it itself", seen
    return None, seen
