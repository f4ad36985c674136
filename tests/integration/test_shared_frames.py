"""Frames that several branches of an epoch read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from dagster_jet.spark.frames.shared import SharedFrames
from dagster_jet.spark.plans.nodes import analyzed, kind
from dagster_jet.spark.plans.union import union_all

if TYPE_CHECKING:
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


def test_nothing_stays_in_the_cache(spark: SparkSession) -> None:
    shared, frame = SharedFrames(), spark.range(3).selectExpr("id * 7 AS a")
    assert shared.add(frame).count() == 3
    assert frame.storageLevel.useMemory
    shared.release()
    assert not frame.storageLevel.useMemory
