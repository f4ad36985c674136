"""A cache of a frame, which is a leaf of the plans above it.

`DataFrame.persist` keeps the whole plan below in every frame above. Spark analyses it with each,
and replaces it only when it plans, after it has compared it with all persisted frames of the
session. With several stages one behind the other these plans grow with each branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.spark.plans.nodes import analyzed, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Cache:
    """Filled by the first job that reads `rows`. After `clear` the next job fills it again."""

    def __init__(self, frame: DataFrame) -> None:
        jvm: Any = frame.sparkSession._jvm
        companion = getattr(jvm, "org.apache.spark.sql.execution.columnar.InMemoryRelation$")
        level = getattr(jvm, "org.apache.spark.storage.StorageLevel").MEMORY_AND_DISK()
        no_name = jvm.scala.Option.empty()
        plan = frame._jdf.queryExecution()
        relation = getattr(companion, "MODULE$").apply(level, plan, no_name)
        self._builder = relation.cacheBuilder()
        own = relation.withOutput(analyzed(frame).output())
        self.rows = frame_of(frame.sparkSession, own)

    def clear(self) -> None:
        is_awaited = False
        self._builder.clearCache(is_awaited)
