"""Sensor that tells an OpenLineage backend what a streaming job reads and writes, as it commits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.asset_job import stream_of
from dagster_jet.orchestration.committed_snapshot import CommittedSnapshot, newest_commit
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.tick import JetTickError, jet_of_tick, required_key
from dagster_jet.orchestration.translator import place_of, stage_data
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import RunEvent

    from dagster_jet.jet import Jet

_DELIVERY_S = 30
"""Less than Dagster gives a tick."""
_ENDS = {JobStatus.COMPLETED: "COMPLETE", JobStatus.FAILED: "FAIL"}


def build_jet_openlineage_sensor(
    assets: dg.AssetsDefinition,
    *,
    client: OpenLineageClient | None = None,
    job_namespace: str = "dagster_jet",
    jet: JetResource | str = "jet",
    name: str | None = None,
    minimum_interval_seconds: int = 60,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Return a sensor that emits OpenLineage events of a streaming job.

    Each execution of the job is a run: START once, RUNNING with inputs and outputs at a committed
    snapshot, at most one per tick, and COMPLETE, FAIL or ABORT at its end. The job's processing
    type is STREAMING. Datasets are named by the places that sources read and sinks write; the
    version of an output is the asset's data version.

    It reads the store, so it also covers jobs that run outside Dagster. An event that a crash has
    interrupted is emitted again.

    Args:
        assets: the result of `@jet_assets`.
        client: the client; by default one that is configured by ``OPENLINEAGE_URL`` and the
            like when a tick runs.
        job_namespace: OpenLineage's namespace of the job, and of places without a URL.
        jet: the `JetResource`, or its key in the definitions.
        name: the sensor's name; by default the pipeline's name plus ``_openlineage``.
        minimum_interval_seconds: minimum time between ticks.
        default_status: status of the sensor when it is first loaded.

    Raises:
        ConfigurationError: `assets` is not from `jet_assets` or has partitions;
            ``dagster-jet[openlineage]`` is not installed.
    """
    pipeline = stream_of(assets, "an OpenLineage sensor")
    try:
        import openlineage.client  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "OpenLineage needs the package 'openlineage-python'.",
            job=pipeline.name,
            cure="pip install 'dagster-jet[openlineage]'",
        ) from None

    def tick(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        with jet_of_tick(jet, context) as opened:
            events, after = news(
                opened, pipeline, job_namespace, Emitted.from_cursor(context.cursor)
            )
        if events:
            _emit(events, pipeline.name, client)
        context.update_cursor(json.dumps(asdict(after)))
        return dg.SkipReason(f"{pipeline.name!r}: {len(events)} events emitted")

    return dg.SensorDefinition(
        name=given_name(name, f"{dagster_name(pipeline.name)}_openlineage"),
        evaluation_fn=tick,
        minimum_interval_seconds=minimum_interval_seconds,
        description=f"Emits OpenLineage events of the streaming job `{pipeline.name}`.",
        default_status=default_status,
        required_resource_keys=required_key(jet),
    )


def _emit(events: Sequence[RunEvent], job: str, given: OpenLineageClient | None) -> None:
    """Emits events, if no client is given by one that lives as long as this call: a transport may
    have a thread, and may only queue what it is given.

    Raises:
        JetTickError: events were not delivered in time; the next tick emits them again.
    """
    from openlineage.client import OpenLineageClient

    client, is_delivered = given or OpenLineageClient(), True
    try:
        for event in events:
            client.emit(event)
    finally:
        if given is None:
            is_delivered = client.close(_DELIVERY_S)
    if not is_delivered:
        raise JetTickError(
            f"{job!r}: OpenLineage's transport did not deliver all of {len(events)} events within "
            f"{_DELIVERY_S} s. The next tick emits them again."
        )


@dataclass(frozen=True)
class Emitted:
    """Cursor: the run and the commit that the backend knows, and whether the run has ended."""

    run: str = ""
    commit: str = ""
    has_ended: bool = True

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Emitted:
        """Parses a cursor; after an unreadable one the newest commit is emitted once more."""
        try:
            return cls(**json.loads(cursor or "{}"))
        except (ValueError, TypeError):
            return cls()


def news(
    jet: Jet, pipeline: Pipeline, namespace: str, emitted: Emitted
) -> tuple[list[RunEvent], Emitted]:
    """Returns what the backend does not know yet, and what it knows then.

    Raises:
        StoreError: the store could not be read.
    """
    found = newest_commit(jet, pipeline.name)
    if found is None:
        return [], emitted
    id = f"{jet.store.store_id}/{found.record.job}/{found.ref.execution_id}"
    after = Emitted(
        str(uuid5(NAMESPACE_URL, id)),
        f"{found.record.timeline}.{found.ref.snapshot_id}{found.held_mark}",
    )
    after = replace(after, has_ended=_has_ended(found.record, found.ref.execution_id))
    # The next execution commits what a dead one has decided: no event may follow that run's end.
    is_over = after.run == emitted.run and emitted.has_ended and after.has_ended
    lineage, kinds = _Lineage(pipeline, namespace), list[tuple[str, str]]()
    if after.run != emitted.run:
        kinds += [] if emitted.has_ended else [(emitted.run, "ABORT")]
        kinds.append((after.run, "START"))
    if (after.run, after.commit) != (emitted.run, emitted.commit) and not is_over:
        kinds.append((after.run, "RUNNING"))
    if after.has_ended and (after.run != emitted.run or not emitted.has_ended):
        kinds.append((after.run, _ENDS.get(found.record.status, "ABORT")))
    return [lineage.event(run, kind, found) for run, kind in kinds], after


def _has_ended(record: ExecutionRecord, execution_id: int) -> bool:
    return not record.status.is_live or record.execution_id != execution_id


@dataclass(frozen=True)
class _Lineage:
    pipeline: Pipeline
    namespace: str

    def event(self, run: str, kind: str, found: CommittedSnapshot) -> RunEvent:
        from openlineage.client import event_v2 as ol
        from openlineage.client.facet_v2 import job_type_job

        streaming = job_type_job.JobTypeJobFacet("STREAMING", "DAGSTER_JET", "JOB")
        job = ol.Job(self.namespace, self.pipeline.name, facets={"jobType": streaming})
        at = datetime.now(timezone.utc)
        if kind in ("START", "RUNNING"):  # a run starts before its snapshots
            taken_at = datetime.fromtimestamp(found.ref.taken_at_ms / 1000, timezone.utc)
            at = min(at, taken_at)
        return ol.RunEvent(
            eventType=ol.RunState[kind],
            eventTime=at.isoformat(),
            run=ol.Run(run),
            job=job,
            producer="https://github.com/dagster-jet/dagster-jet",
            inputs=[*self._inputs()] if kind == "RUNNING" else [],
            outputs=[*self._outputs(found.version)] if kind == "RUNNING" else [],
        )

    def _inputs(self) -> Iterator[Any]:
        from openlineage.client.event_v2 import InputDataset

        for node in self.pipeline.graph.sources:
            yield InputDataset(*self._named(node.name))

    def _outputs(self, data_version: str) -> Iterator[Any]:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import dataset_version_dataset

        version = dataset_version_dataset.DatasetVersionDatasetFacet(data_version)
        for node in self.pipeline.graph.sinks:
            yield OutputDataset(*self._named(node.name), facets={"version": version})

    def _named(self, stage: str) -> tuple[str, str]:
        data = stage_data(self.pipeline.name, self.pipeline.graph, stage)
        return dataset_name(data.description) or (self.namespace, f"{data.pipeline}.{stage}")


def dataset_name(description: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns OpenLineage's namespace and name of a connector's place; None if it has no URL.

    Example:
        >>> dataset_name({"servers": "kafka:9092", "topic": "orders"})
        ('kafka://kafka:9092', 'orders')
        >>> dataset_name({"path": "s3://lake/orders/"})
        ('s3://lake', 'orders')
        >>> dataset_name({"path": "iceberg://lake/shop.orders"})
        ('iceberg://lake', 'shop.orders')
        >>> dataset_name({"path": "/data/orders"})
        ('file', '/data/orders')
        >>> dataset_name({"url": "postgresql://db:5432/shop", "table": "orders"})
        ('postgresql://db:5432', 'shop.orders')
    """
    table = description.get("table", "")
    place = place_of(description) or (table and description.get("url"))
    if not place:
        return None
    parts = urlsplit(place)
    path = parts.path if parts.scheme == "file" else parts.path.strip("/")
    name = ".".join(filter(None, (path, table)))
    return (parts.scheme if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}"), name
