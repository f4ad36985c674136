"""Every shard is one Spark partition of its own, with all of its rows, whatever the placement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dagster_jet.operators.operator import PARTITION_COLUMN
from dagster_jet.spark.cluster.executors import executors, executors_with
from dagster_jet.spark.cluster.placement import Anchored, OneMachine, Placement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 11


def tasks_of(frame: DataFrame) -> list[list[tuple[int | None, ...]]]:
    """Rows that each task was given, sorted."""

    def tell(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [list(row.values()) for batch in batches for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.list_(pa.list_(pa.int64())))})

    told = frame.mapInArrow(tell, "rows array<array<long>>").collect()
    return [[tuple(row) for row in task.rows] for task in told]


@pytest.mark.parametrize("kind", [OneMachine, Anchored])
@pytest.mark.parametrize("shards", [1, 3, 8, 16])
def test_every_shard_has_a_task_with_its_rows(
    spark: SparkSession, kind: type[Placement], shards: int
) -> None:
    placement = kind(spark, shards)
    try:
        placement.place()
        rows = spark.range(0, 200, 1, 3).selectExpr(
            f"cast(id % {PARTITIONS} as int) as {PARTITION_COLUMN}", "id"
        )
        tasks = tasks_of(placement.by_shard(rows))
        assert len(tasks) == shards
        owners = [{shard for *_, shard in task} for task in tasks]
        assert sorted(shard for owned in owners for shard in owned) == list(range(shards))
        for task in tasks:
            for partition, number, shard in task:
                if partition is None:
                    assert number is None  # an anchor row
                else:
                    assert partition == number % PARTITIONS and shard == partition % shards
        found = sorted(number for task in tasks for _, number, _ in task if number is not None)
        assert found == list(range(200))
        assert sorted(tasks_of(placement.shards())) == [[(shard,)] for shard in range(shards)]
        placement.check()
        assert not placement.is_outgrown
    finally:
        placement.close()


def test_executors_that_cache_a_frame_are_known(spark: SparkSession) -> None:
    frame = spark.range(0, 100, 1, 4)
    assert executors_with(spark, frame, 4) == frozenset()
    frame.persist()
    frame.count()
    assert executors_with(spark, frame, 4) == executors(spark)
    frame.unpersist()


def test_the_end_of_one_placement_leaves_the_shards_of_another(spark: SparkSession) -> None:
    """Failed before: the anchors of all jobs with as many shards were one cache of Spark's."""
    one, other = Anchored(spark, 3), Anchored(spark, 3)
    try:
        one.place()
        other.place()
        one.close()
        assert executors_with(spark, other.shards(), 3) == executors(spark)
        assert sorted(tasks_of(other.shards())) == [[(0,)], [(1,)], [(2,)]]
    finally:
        other.close()
