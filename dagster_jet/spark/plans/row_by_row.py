"""Transforms see the rows of one epoch. A function that reads several rows at once is found in
Spark's analysed plan and refused, naming the stage that does the same over all epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.errors import PipelineError
from dagster_jet.spark.plans.nodes import analyzed, children, kind, leaves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AGGREGATE = (
    "aggregates",
    "group_by(...).window(...).aggregate(...), or rolling_aggregate(...) without windows",
)
_DISTINCT = ("looks for equal rows", "deduplicate(on=..., within=...)")
_WINDOW = (
    "has a window function",
    "group_by(...).map_stateful(...), or top_n, first and last in a window's aggregates",
)
_LIMIT = ("takes some of the rows", "top_n, first or last in a window's aggregates")
_SORT = ("sorts", "top_n in a window's aggregates, or let the readers of the output sort")
_FUNCTION = ("calls a function with groups of rows", "group_by(...).map_stateful(...)")
_SET = ("compares sets of rows", "join(..., within=...) or deduplicate(within=...)")
_JOIN = ("joins the stream with itself", "join(other, on=..., within=...)")
_KINDS = {
    "Aggregate": _AGGREGATE,
    "Deduplicate": _DISTINCT,
    "DeduplicateWithinWatermark": _DISTINCT,
    "Distinct": _DISTINCT,
    "Window": _WINDOW,
    "GlobalLimit": _LIMIT,
    "LocalLimit": _LIMIT,
    "Tail": _LIMIT,
    "Offset": _LIMIT,
    "Sort": _SORT,
    "FlatMapGroupsInPandas": _FUNCTION,
    "FlatMapGroupsInArrow": _FUNCTION,
    "FlatMapCoGroupsInPandas": _FUNCTION,
    "FlatMapCoGroupsInArrow": _FUNCTION,
    "MapGroups": _FUNCTION,
    "CoGroup": _FUNCTION,
    "Except": _SET,
    "Intersect": _SET,
}
"""By Spark's logical node: what the function does, and the stage to use instead."""


def check_row_by_row(job: str, stage: str, given: DataFrame, returned: DataFrame) -> None:
    """
    Args:
        given: input of the function; operations before it are not checked.
        returned: its result. It may aggregate rows that are not from the stream.

    Raises:
        PipelineError: the function reads several of the stream's rows at once.
    """
    stream = analyzed(given)
    sources = [leaf for leaf in leaves(stream) if kind(leaf) != "Range"]  # also in other frames
    _, found = _look(analyzed(returned), stream, [stream, *sources])
    if found is not None:
        does, instead = found
        raise PipelineError(
            f"the function {does}, but it gets the rows of one epoch only, and the limits of "
            "epochs differ from run to run.",
            job=job,
            stage=stage,
            cure=f"Use {instead}. If the function should work on the rows of one epoch, use "
            "transform(..., per_epoch=True).",
        )


def _look(plan: Any, stream: Any, sources: list[Any]) -> tuple[bool, tuple[str, str] | None]:
    """Whether the plan reads the stream; and its first operation on several rows of it."""
    # For a second use of the stream Spark makes a copy with other ids.
    if plan.equals(stream) or any(plan.sameResult(one) for one in sources):
        return True, None
    below = list(children(plan))
    reading = 0
    for child in below:
        reads, found = _look(child, stream, sources)
        if found is not None:
            return True, found
        reading += reads
    if kind(plan) == "Join" and reading > 1:
        return True, _JOIN
    return reading > 0, _KINDS.get(kind(plan)) if reading else None
