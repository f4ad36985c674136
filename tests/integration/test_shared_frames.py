"""Frames that several branches of an epoch read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from dagster_jet.spark.frames.shared import SharedFrames
from dagster_jet.spark.plans.counters import Counters
from dagster_jet.spark.plans.nodes import analyzed, kind
from dagster_jet.spark.plans.repeatable import Repeat, again, repeat
from dagster_jet.spark.plans.union import union_all

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def shared() -> Iterator[SharedFrames]:
    frames = SharedFrames()
    yield frames
    frames.release()


def test_a_branch_begins_at_the_cache(spark: SparkSession, shared: SharedFrames) -> None:
    below = spark.range(4).selectExpr("id AS a", "id + 1 AS b").where("a > 0")
    branch = shared.add(below)
    assert kind(analyzed(branch)) == "InMemoryRelation"
    assert sorted(branch.select("b").collect()) == [(2,), (3,), (4,)]


def test_all_branches_read_the_same_rows(spark: SparkSession, shared: SharedFrames) -> None:
    branch = shared.add(spark.range(50).select(F.rand().alias("a")))
    twice = union_all([branch, branch.where("a >= 0"), branch.select("a")])
    rows = [row.a for row in twice.collect()]
    assert len(rows) == 150 and rows[:50] == rows[50:100] == rows[100:]


def test_frames_with_equal_rows_keep_their_names(spark: SparkSession, shared: SharedFrames) -> None:
    one = shared.add(spark.range(3).select(F.col("id").alias("x")))
    other = shared.add(spark.range(3).select(F.col("id").alias("y")))
    assert (one.columns, other.columns) == (["x"], ["y"])
    assert sorted(one.join(other, F.col("x") == F.col("y")).collect()) == [(0, 0), (1, 1), (2, 2)]


def test_a_cleared_cache_is_filled_anew(spark: SparkSession, tmp_path: Path) -> None:
    """The cache is filled anew by the same physical plan, when it is copied: `Repeat.COPIED`."""
    ran = tmp_path / "ran"

    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open(ran, "a") as file:
            file.write("x")
        for _ in batches:
            yield pa.record_batch({"n": [ran.stat().st_size]})

    shared = SharedFrames()
    branch = shared.add(spark.range(1, numPartitions=1).mapInArrow(numbered, "n long"))
    both = union_all([branch, branch])
    assert repeat(both, several_readers=True, caches=shared.frames) is Repeat.COPIED
    for run in (1, 2, 3):
        assert again(both, Repeat.COPIED).collect() == [(run,), (run,)]
        shared.release()
    assert ran.read_text() == "xxx"


def test_what_is_counted_below_a_cache_is_counted_in_each_run(spark: SparkSession) -> None:
    shared = SharedFrames()
    rows = spark.range(7).observe("seen", F.count(F.lit(1)).alias("rows"))
    branch = shared.add(rows)
    both = union_all([branch, branch])
    for _ in range(3):
        action = again(both, Repeat.COPIED)
        assert len(action.collect()) == 14
        assert Counters(action).count("seen") == 7
        shared.release()


def test_what_is_below_a_cache_begins_anew_as_well(spark: SparkSession) -> None:
    for below in (F.rand(), F.current_timestamp(), F.expr("(SELECT max(id) FROM range(3))")):
        shared = SharedFrames()
        branch = shared.add(spark.range(3).select(below.alias("a")))
        assert repeat(branch, several_readers=True, caches=shared.frames) is None
        shared.release()


def test_a_frame_that_has_branches_is_persisted(spark: SparkSession, shared: SharedFrames) -> None:
    frame = spark.range(50).select(F.rand().alias("a"))
    one, other = frame.where("a < 2"), frame.select("a")
    shared.persist(frame)
    assert one.collect() == other.collect()
    shared.release()
    assert not frame.storageLevel.useMemory


def test_what_a_source_has_persisted_itself_stays(
    spark: SparkSession, shared: SharedFrames
) -> None:
    """Failed before: Spark knows one cache for equal frames, and it was dropped with the epoch."""
    theirs, equal = (spark.range(50).select((F.col("id") * 2).alias("a")) for _ in range(2))
    theirs.persist()
    try:
        shared.persist(equal)
        assert equal.count() == 50
        shared.release()
        assert theirs.storageLevel.useMemory
    finally:
        theirs.unpersist()
