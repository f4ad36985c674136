"""Transforms see the rows of one epoch. A function that reads several rows at once, or whose values
depend on the epoch and its tasks, is found in Spark's analysed plan and refused. The error names
what does the same over all epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dagster_jet.errors import PipelineError
from dagster_jet.spark.plans.nodes import (
    analyzed,
    children,
    kind,
    leaves,
    not_deterministic,
)

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

_NUMBERS = "a key of the rows, or a count in group_by(...).map_stateful(...)"
_PLACES = "a column that the rows bring, or a partition folder (day=.../)"
_VALUES = {
    "MonotonicallyIncreasingID": ("numbers rows by epoch and task", _NUMBERS),
    "SparkPartitionID": ("numbers the tasks of an epoch", _NUMBERS),
    "InputFileName": ("asks a task for its file", _PLACES),
    "InputFileBlockStart": ("asks a task for its part of a file", _PLACES),
    "InputFileBlockLength": ("asks a task for its part of a file", _PLACES),
}
"""By Spark's expression: what the function does, and what to use instead."""
_SEEDED = frozenset(("Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle"))
"""Expressions whose values follow from a seed, the task and the rows before in the task."""


def check_row_by_row(
    job: str | None, stage: str | None, given: DataFrame, returned: DataFrame
) -> None:
    """
    Args:
        given: input of the function; operations before it are not checked.
        returned: its result. It may aggregate rows that are not from the stream.

    Raises:
        PipelineError: the function reads several of the stream's rows at once, or computes values
            that depend on the epoch and its tasks.
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
    if not reading:
        return False, None
    values = (_VALUES.get(kind(expression)) for expression in _changing(plan))
    return True, _KINDS.get(kind(plan)) or next(filter(None, values), None)


def check_seeds(
    job: str, stage: str, given: DataFrame, returned: DataFrame, again: Callable[[], DataFrame]
) -> None:
    """
    Args:
        given: input of the function; operations before it are not checked.
        returned: its result.
        again: calls it once more with the same input.

    Raises:
        PipelineError: it gives random values a fixed seed, so they repeat in every epoch.
    """
    drawn = _drawn(returned)
    drawn -= _drawn(given) if drawn else set()
    fixed = drawn & _drawn(again()) if drawn else drawn
    if not fixed:
        return
    raise PipelineError(
        f"the function has a fixed seed, in {min(fixed)}: its random values begin anew in every "
        "task of every epoch, so they repeat.",
        job=job,
        stage=stage,
        cure='Write the function as text without a seed, such as "uuid()" or "rand()": a column '
        "F.rand() has a seed from the moment when it is made.",
    )


def _drawn(frame: DataFrame) -> set[str]:
    """The random values of a frame, with their seeds."""
    pending, found = [analyzed(frame)], set()
    while pending:
        plan = pending.pop()
        found |= {e.toString() for e in _changing(plan) if kind(e) in _SEEDED}
        pending += children(plan)
    return found


def _changing(plan: Any) -> Iterator[Any]:
    """Yields the expressions of one node that are not deterministic, outer ones first."""
    pending = [] if plan.deterministic() else not_deterministic(plan.expressions())
    while pending:
        expression = pending.pop()
        yield expression
        pending += not_deterministic(expression.children())
