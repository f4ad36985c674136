"""A stage's saved state as a Spark frame: tasks read it by partition, the driver never does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.storage.chains import ChainReader
from dagster_jet.spark.cluster.session import parallelism
from dagster_jet.spark.planning.operator_plan import spark_schema
from dagster_jet.spark.tasks.state_task import StateTask, schema_of_all
from dagster_jet.store import StoreHandle
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def state_frame(
    session: SparkSession,
    store: StoreHandle,
    map_name: str,
    manifest: Manifest,
    stage: str,
    plan: dict[str, Any] | None,
    expired_until_ms: int | None,
) -> DataFrame:
    """Returns the frame. It is lazy: each action on it reads the store.

    Args:
        session: the session of the frame.
        store: for the tasks.
        map_name: the map with the snapshot's chunks.
        manifest: the snapshot's manifest.
        stage: the stage whose state is read.
        plan: the stage's plan; None: returns the rows as they were saved.
        expired_until_ms: see `saved_rows.living_rows`.

    Raises:
        SnapshotInvalidError: the snapshot has no such stage, an index is missing or damaged, or the
            stage has no rows, so its columns are unknown.
    """
    chains = manifest.shards.get(stage)
    if chains is None:
        raise SnapshotInvalidError(
            "the snapshot has no state of this name; it has state of: "
            f"{', '.join(sorted(manifest.shards))}.",
            job=manifest.job,
            stage=stage,
        )
    chunks, count = store.map(map_name), manifest.partition_count
    readers = [
        ChainReader.open(chunks, chain, vertex=stage, partition_count=count) for chain in chains
    ]
    schemas = [schema for reader in readers for schema in reader.schemas()]
    if not schemas:
        raise SnapshotInvalidError(
            "its state is empty, and its columns are not known.",
            job=manifest.job,
            stage=stage,
        )
    schema = schema_of_all(schemas)
    tasks = min(count, max(1, parallelism(session)))
    partitions = session.range(0, count, 1, tasks)
    task = StateTask(store, map_name, stage, chains, count, schema, plan, expired_until_ms)
    return partitions.mapInArrow(OwnTask(task, stage), spark_schema(schema))
