"""Combines frames into one, which Spark analyses once.

`DataFrame.union` takes two frames. With many, each call analyses all frames before it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dagster_jet.spark.plans.nodes import analyzed, frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def union_all(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all frames, with equal columns, in their order. At least one frame."""
    first = frames[0]
    if len(frames) == 1:
        return first
    session = first.sparkSession
    jvm: Any = session._jvm
    union = getattr(jvm, "org.apache.spark.sql.catalyst.plans.logical.Union")
    plans = jvm.PythonUtils.toSeq([analyzed(frame) for frame in frames])
    by_name, allow_missing = False, False
    return frame_of(session, union(plans, by_name, allow_missing))
