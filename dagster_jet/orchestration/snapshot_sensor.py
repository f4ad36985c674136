"""Sensor that launches batch assets or jobs when a stream has committed new rows.

It reads the store: a snapshot counts once it is committed to the sinks, regardless of the run that
took it and of whether the job runs in Dagster.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.committed_snapshot import CommittedSnapshot, commits
from dagster_jet.orchestration.dagster_name import dagster_name, given_name, pipeline_name
from dagster_jet.orchestration.launches import job_tag, waiting_run
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.tick import jet_of_tick, required_key
from dagster_jet.pipeline import Pipeline
from dagster_jet.store import Store

if TYPE_CHECKING:
    from dagster._core.definitions.asset_selection import CoercibleToAssetSelection
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )

    from dagster_jet.jet import Jet

_STORE_ID_CHARACTERS = 8


def build_jet_snapshot_sensor(
    *,
    pipeline: Pipeline | str,
    sinks: Sequence[str] = (),
    job: dg.JobDefinition | UnresolvedAssetJobDefinition | str | None = None,
    asset_selection: CoercibleToAssetSelection | None = None,
    jet: JetResource | str = "jet",
    name: str | None = None,
    minimum_interval_seconds: int = 30,
    tags: Mapping[str, str] | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that requests a run when a snapshot with new rows is committed.

    A tick requests at most one run, for the newest snapshot, which includes the rows of earlier
    ones. Restarts, restored snapshots and snapshots without new rows in `sinks` request nothing.
    While a requested run waits in Dagster's queue no other run is requested, because the waiting
    run will read the new rows too.

    The run has the tags ``dagster_jet/snapshot_of``, ``dagster_jet/snapshot`` and
    ``dagster_jet/epoch``. Up to that epoch the sinks are consistent with each other.

    Args:
        pipeline: the pipeline, or its name in deployments that do not define it.
        sinks: names of the sinks whose rows count; by default all sinks.
        job: the job to run, or its name. Exactly one of `job` and `asset_selection` is required.
        asset_selection: the assets to materialize.
        jet: the `JetResource`, or its key in the definitions.
        name: the sensor's name; by default the pipeline's name plus ``_snapshots``.
        minimum_interval_seconds: minimum time between ticks.
        tags: additional tags of the runs.
        default_status: status of the sensor when it is first loaded.

    Raises:
        ConfigurationError: the pipeline has no such sink; neither or both of `job` and
            `asset_selection` are given.

    Example:
        >>> sensor = build_jet_snapshot_sensor(
        ...     pipeline="airport_delays", sinks=["hourly_out"], asset_selection=["worst_airports"]
        ... )
        >>> sensor.name
        'airport_delays_snapshots'
    """
    streaming_job = pipeline_name(pipeline)
    if (job is None) == (asset_selection is None):
        raise ConfigurationError(
            "either job or asset_selection is needed, and not both.",
            job=streaming_job,
            cure="Give one of them to build_jet_snapshot_sensor().",
        )
    if isinstance(pipeline, Pipeline):
        _check_sinks(streaming_job, sinks, [node.name for node in pipeline.graph.sinks])
    sensor_name = given_name(name, f"{dagster_name(streaming_job)}_snapshots")

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with jet_of_tick(jet, context) as opened:
            return look(context, opened, streaming_job, sinks, tags or {}, sensor_name)

    return dg.SensorDefinition(
        name=sensor_name,
        evaluation_fn=tick,
        minimum_interval_seconds=minimum_interval_seconds,
        description=f"Requests a run when the streaming job `{streaming_job}` has new rows.",
        default_status=default_status,
        required_resource_keys=required_key(jet),
        asset_selection=asset_selection,
        **({"job_name": job} if isinstance(job, str) else {"job": job}),
    )


@dataclass(frozen=True)
class Taken:
    """Cursor: the newest snapshot that was handled, by a request or because it had no new rows.

    Attributes:
        store: id of the store; snapshot ids of different stores are not comparable.
        timeline: timeline of the job then; it grows when the job goes back to an older snapshot.
        snapshot_id: id of the snapshot.
        first_execution_id: execution with which the job began; another one after a deletion.
        rows: rows of each sink since the job began.
    """

    store: str
    timeline: int
    snapshot_id: int
    first_execution_id: int
    rows: Mapping[str, int]

    def to_cursor(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Taken | None:
        """Parses a cursor; returns None for an unreadable one, as if nothing was handled yet."""
        try:
            found = cls(**json.loads(cursor or "null"))
            rows = {str(sink): int(rows) for sink, rows in found.rows.items()}
            ids = int(found.timeline), int(found.snapshot_id)
            return cls(str(found.store), *ids, int(found.first_execution_id), rows)
        except (ValueError, TypeError, AttributeError):
            return None

    def is_of_job_of(self, newest: Taken) -> bool:
        """Whether the job was not deleted since."""
        begun, now = self.first_execution_id, newest.first_execution_id
        return (self.store, begun) == (newest.store, now)


def sinks_with_news(
    taken: Taken | None, newest: Taken, before_rewind: Callable[[], Mapping[str, int]]
) -> list[str]:
    """Return the sinks with rows for which no run was requested yet. Pure.

    Args:
        taken: the cursor.
        newest: the newest commit.
        before_rewind: returns the rows at the snapshot gone back to, if the timeline is new.
    """
    known: Mapping[str, int] = {}
    if taken is not None and taken.is_of_job_of(newest):
        known = taken.rows if taken.timeline == newest.timeline else before_rewind()
    return [sink for sink, rows in newest.rows.items() if rows > known.get(sink, 0)]


def look(
    context: dg.SensorEvaluationContext,
    jet: Jet,
    job: str,
    sinks: Sequence[str],
    tags: Mapping[str, str],
    sensor: str,
) -> dg.SensorResult:
    """Evaluates one tick.

    Args:
        context: context of the tick.
        jet: gives access to the store.
        job: name of the streaming job.
        sinks: names of the sinks whose rows count; empty: all.
        tags: additional tags of the runs.
        sensor: name of the sensor.

    Raises:
        StoreError: the store could not be read.
        ConfigurationError: the job has no such sink.
    """
    retained = iter(commits(jet, job))
    found = next(retained, None)
    if found is None:
        never = jet.job(job).record() is None
        return _skip("it has never run" if never else "nothing is committed yet", job)
    _check_sinks(job, sinks, found.manifest.sinks)
    chosen = list(sinks) or sorted(found.manifest.sinks)
    newest = Taken(
        jet.store.store_id,
        found.record.timeline,
        found.ref.snapshot_id,
        found.record.first_execution_id,
        found.rows(chosen),
    )
    taken = Taken.from_cursor(context.cursor)
    news = sinks_with_news(
        taken, newest, lambda: _before_rewind([found, *retained], newest.timeline, chosen)
    )
    cursor = newest.to_cursor()
    if not news:
        if taken == newest:
            return _skip(f"snapshot {newest.snapshot_id} is known", job, cursor)
        return _skip(
            f"snapshot {newest.snapshot_id} has no new rows of {', '.join(chosen)}", job, cursor
        )
    tagged = {keys.TAG_SNAPSHOT_IN: job_tag(jet.store, job), keys.DAGSTER_SENSOR_NAME: sensor}
    waiting = waiting_run(context.instance, tagged)
    if waiting is not None:
        return _skip(f"run {waiting} was requested, and will read this, too", job, context.cursor)
    request = _request(found, jet.store, tags)
    return dg.SensorResult(run_requests=[request], cursor=cursor)


def _request(found: CommittedSnapshot, store: Store, tags: Mapping[str, str]) -> dg.RunRequest:
    manifest = found.manifest
    return dg.RunRequest(
        # Dagster skips a known key for ever: a snapshot is taken once, even if the cursor is lost.
        run_key=f"{manifest.job}:{store.store_id[:_STORE_ID_CHARACTERS]}:{manifest.timeline}:"
        f"{manifest.snapshot_id}:{manifest.execution_id}{found.held_mark}",
        tags={
            **tags,
            keys.TAG_SNAPSHOT_OF: manifest.job,
            keys.TAG_SNAPSHOT_IN: job_tag(store, manifest.job),
            keys.TAG_SNAPSHOT: str(manifest.snapshot_id),
            keys.TAG_EPOCH: str(manifest.epoch_id),
        },
    )


def _before_rewind(
    retained: Iterable[CommittedSnapshot], timeline: int, sinks: Sequence[str]
) -> Mapping[str, int]:
    """Returns the rows at the newest snapshot of an older timeline, which the job went back to.

    If that snapshot is no longer retained, all rows count as new: repeated is better than missed.
    """
    older = (found for found in retained if found.manifest.timeline < timeline)
    restored = next(older, None)
    return {} if restored is None else restored.rows(sinks)


def _check_sinks(job: str, wanted: Sequence[str], known: Iterable[str]) -> None:
    known = sorted(known)
    unknown = sorted({*wanted} - {*known})
    if unknown:
        raise ConfigurationError(
            f"the pipeline has no sink {unknown[0]!r}; its sinks are: "
            f"{', '.join(known) or 'none'}.",
            job=job,
            cure="Correct sinks=[...] of build_jet_snapshot_sensor().",
        )


def _skip(why: str, job: str, cursor: str | None = None) -> dg.SensorResult:
    return dg.SensorResult(skip_reason=f"{job!r}: {why}", cursor=cursor)
