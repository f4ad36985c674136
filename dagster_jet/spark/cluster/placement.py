"""Placement: assigns shards to Spark tasks and executors.

On one machine every task can read every local run, so rows only have to be grouped by shard.

On a cluster a shard's runs are files on the executor that wrote them, so the shard's task must run
there in every epoch. Spark's API has no such request. It follows from a cached frame of *anchors*,
one row per shard. A stage's rows are joined to it (both sides hash-partitioned by the shard's
slot). A task's input is then a shuffle, which has no locality, and a cached block, whose executor
Spark prefers and, by our `spark.locality.wait.process`, waits for. A shard that moves nevertheless
does not find its runs, and the job restarts from its last snapshot. If an executor is lost, the job
restarts at once.
"""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from dagster_jet.core.ddl import quoted_name
from dagster_jet.operators.operator import PARTITION_COLUMN
from dagster_jet.spark.cluster.executor_watch import ExecutorWatch
from dagster_jet.spark.cluster.executors import (
    executors,
    executors_wanted,
    executors_with,
)
from dagster_jet.spark.cluster.joining import JoiningExecutors
from dagster_jet.spark.cluster.session import retries_in_local_mode
from dagster_jet.spark.tasks.barrier import SHARD_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SLOT = "__slot"
_slots_found: dict[int, dict[int, int]] = {}
"""By number of shards, for the next execution."""
_anchors_made = itertools.count()
_KEYS_PER_SHARD = 40
"""Integers tried per shard and round to find one for each partition of Spark's hash."""


class OneMachine:
    """Placement in local mode: any task may take any shard."""

    def __init__(self, session: SparkSession, shard_count: int) -> None:
        self._session, self._shards = session, shard_count
        self._fills = retries_in_local_mode(session)

    def by_shard(self, source: DataFrame) -> DataFrame:
        """`source` with `SHARD_COLUMN`: one Spark partition per shard, none of them empty.

        A shard without rows gets an anchor row, with nothing but the shard, because a task without
        data must still know its shard.
        """
        shard = _shard(self._shards)
        anchors = self._session.range(0, self._shards, 1, 1).select(
            *[F.lit(None).cast(f.dataType).alias(f.name) for f in source.schema],
            F.col("id").cast("int").alias(SHARD_COLUMN),
        )
        sharded = source.withColumn(SHARD_COLUMN, shard).union(anchors)
        return sharded.repartitionById(self._shards, F.col(SHARD_COLUMN))

    def shards(self) -> DataFrame:
        """One Spark partition per shard, with only the shard's number."""
        numbers = self._session.range(0, self._shards, 1, self._shards)
        return numbers.select(F.col("id").cast("int").alias(SHARD_COLUMN))

    def fill(self, frame: DataFrame) -> None:
        """Caches a frame by a separate action if Spark runs failed tasks again.

        A task that fails after it has filled a block leaves the block, but its counts are dropped,
        and nothing makes the rows again. Without retries the first task that needs a block fills
        it: tasks of one JVM wait for each other.
        """
        if self._fills:
            frame.count()

    is_outgrown = False
    """No executor joins."""

    def place(self) -> None:
        """Does nothing: no shard has a place."""

    def placed(self) -> None:
        """Does nothing."""

    def covering(self) -> AbstractContextManager[None]:
        """Does nothing: an executor is lost only with the JVM."""
        return nullcontext()

    def check(self) -> None:
        """Does nothing: an executor is lost only with the JVM."""

    def close(self) -> None:
        """Does nothing."""


class Anchored:
    """Placement on a cluster: each shard's tasks run on the executor that caches its anchor.

    Notices from its creation on that an executor is lost; `await_executors` comes before it.
    """

    def __init__(self, session: SparkSession, shard_count: int) -> None:
        self._session, self._shards = session, shard_count
        self._watch = ExecutorWatch(session)
        wanted = 1 + executors_wanted(session)  # and the driver
        self._joining = JoiningExecutors(session, self._watch.at_first, wanted)
        self._are_placed = False

    def place(self) -> None:
        """Places the shards by a Spark job of its own, unless another one has: two tasks that need
        the same anchor at once would cache it on two executors."""
        if not self._are_placed:
            self._anchors.count()
            self._are_placed = True

    def placed(self) -> None:
        """Is told that a Spark job with one task for each shard has run on `shards`."""
        self._are_placed = True

    @cached_property
    def _anchors(self) -> DataFrame:
        # Spark has one cache for equal plans, and drops it for all of them: no two are equal.
        first = next(_anchors_made)
        shard = (F.col("id") - first).cast("int")
        anchors = self._session.range(first, first + self._shards, 1, 1).select(
            F.element_at(F.lit(self._slots), shard + 1).alias(_SLOT), shard.alias(SHARD_COLUMN)
        )
        return anchors.repartition(self._shards, F.col(_SLOT)).persist()

    @cached_property
    def _slots(self) -> list[int]:
        return _slots(self._session, self._shards)

    @cached_property
    def _slot_sql(self) -> str:
        # The optimizer must not know the slot: with a constant key, or none, it would fold it, and
        # turn the join below into a nested loop join, which ignores placement.
        return (
            f"element_at(array({','.join(map(str, self._slots))}), "
            f"cast(pmod(`{PARTITION_COLUMN}`, {self._shards}) as int) + 1) "
            "+ cast(monotonically_increasing_id() & 0 as int)"
        )

    def by_shard(self, source: DataFrame) -> DataFrame:
        """Like `OneMachine.by_shard`; the join with the anchors adds the shard."""
        rows = source.withColumn(_SLOT, F.expr(self._slot_sql))
        rows = rows.repartition(self._shards, F.col(_SLOT))
        joined = self._anchors.hint("shuffle_hash").join(rows, _SLOT, "left")
        names = [F.col(quoted_name(name)) for name in source.columns]
        return joined.select(*names, F.col(SHARD_COLUMN))

    def shards(self) -> DataFrame:
        return self._anchors.select(SHARD_COLUMN)

    def fill(self, frame: DataFrame) -> None:
        """Caches a frame that several branches read, by a separate action.

        Otherwise two tasks on two executors that miss the same block would both compute it: rows of
        a nondeterministic function would differ between two sinks, and observations would count
        double.
        """
        frame.count()

    def covering(self) -> AbstractContextManager[None]:
        """See `ExecutorWatch.covering`."""
        return self._watch.covering()

    def check(self) -> None:
        """See `ExecutorWatch.check`."""
        self._watch.check()

    @property
    def is_outgrown(self) -> bool:
        """Whether warm executors without shards are there: a restart would give them some."""
        return self._joining.are_ready and self._have_none

    @cached_property
    def _have_none(self) -> bool:
        """Whether executors that have joined got no shards while these were placed."""
        placed = executors_with(self._session, self._anchors, self._shards)
        return not executors(self._session) <= placed | self._watch.at_first

    def close(self) -> None:
        self._joining.close()
        self._watch.close()
        if "_anchors" in vars(self):
            self._anchors.unpersist()


Placement = OneMachine | Anchored


def _slots(session: SparkSession, shard_count: int) -> list[int]:
    """Per shard an integer that Spark's hash partitioning sends to partition = shard.

    Shard numbers themselves would share some partitions, and leave others empty.
    """
    found = _slots_found.setdefault(shard_count, {})
    tried, step = 0, _KEYS_PER_SHARD * shard_count
    while len(found) < shard_count:
        keys = session.range(tried, tried + step, 1, 1).select(
            F.pmod(F.hash(F.col("id").cast("int")), F.lit(shard_count)), F.col("id")
        )
        for partition, key in keys.collect():
            found.setdefault(partition, key)
        tried += step
    return [found[shard] for shard in range(shard_count)]


def _shard(shard_count: int) -> Column:
    return F.pmod(F.col(PARTITION_COLUMN), F.lit(shard_count)).cast("int")
