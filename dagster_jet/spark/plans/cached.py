"""A persisted frame as a leaf of the plans above it.

By itself, Spark keeps the whole plan below a persisted frame in every frame above it, analyses it
with each, and replaces it by the cache only when it plans. With several stages one behind the other
these plans grow with each branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.spark.plans.nodes import analyzed, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def from_cache(persisted: DataFrame) -> DataFrame:
    """The rows of a frame as its cache has them. The frame stays persisted, or the rows are made
    and kept again."""
    session = persisted.sparkSession
    manager = session._jsparkSession.sharedState().cacheManager()
    relation = manager.lookupCachedData(persisted._jdf).get().cachedRepresentation()
    # The cache may be that of an equal frame with other names.
    return frame_of(session, relation.withOutput(analyzed(persisted).output()))
