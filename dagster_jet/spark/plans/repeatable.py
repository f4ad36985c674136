"""Runs a frame again for other rows: its plan contains nothing from the time of the first run."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from dagster_jet.spark.plans.nodes import (
    analyzed,
    children,
    elements,
    frame_of,
    kind,
    not_deterministic,
    optimized,
    physical,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RUN_ANEW = frozenset(
    (
        *("Range", "MapInArrow", "MapInPandas", "CollectMetrics"),
        *("Project", "Filter", "Coalesce", "Union", "Sort", "Expand", "Generate"),
        *("HashAggregate", "ObjectHashAggregate", "SortAggregate", "BroadcastHashJoin"),
        *("WholeStageCodegen", "InputAdapter", "ColumnarToRow", "RowToColumnar"),
    )
)
"""Physical nodes, without `Exec`, that keep nothing between runs. Unknown nodes count as keeping
something, as exchanges and caches keep their rows, and scans their file lists."""

_NUMBERS = frozenset(("MonotonicallyIncreasingID",))
"""Not deterministic according to Spark: the number of a row depends on the rows before it in its
task. Each run starts at 0."""
_OF_TABLES = frozenset(("RDDScan", "Project", "Filter", "WholeStageCodegen", "InputAdapter"))
"""Nodes under a broadcast, which is kept: only tables that were read before, no stream."""
_FUNCTIONS = frozenset(("BatchEvalPython", "ArrowEvalPython"))
"""Users' scalar functions, deterministic by default."""


_EXCHANGED = frozenset(("ShuffleExchange", "ShuffledHashJoin", "InMemoryTableScan"))
"""Physical nodes between the tasks of a cluster: a shuffle, and the join with the shards' anchors,
the only frame that is cached for the whole execution."""
_CACHED = frozenset(("InMemoryTableScan",))
"""Reads a cache that is cleared after each epoch (`plans.cached`)."""


class Repeat(Enum):
    """How a frame runs again."""

    AS_IT_IS = "as it is"
    """No run leaves data that the next one would read."""
    COPIED = "copied"
    """Its physical plan is copied: Spark's nodes keep the shuffles and caches of the last run."""
    PLANNED = "planned"
    """It is planned again: frames that are cached in each epoch are made by shuffles."""


def repeat(
    frame: DataFrame,
    *,
    several_readers: bool,
    exchanges: bool = False,
    caches: Sequence[DataFrame] = (),
) -> Repeat | None:
    """How the frame can run again for other rows; None: it cannot. Plans it without running it.

    Args:
        several_readers: each of several branches makes the rows again, and they must agree. Users'
            functions may return different values for the same row.
        exchanges: its tasks are on several executors.
        caches: frames below it that are cached in each epoch.
    """
    logical = [analyzed(one) for one in (*caches, frame)]
    # The seed of `rand()` is part of the plan.
    if not all(map(_begins_anew, logical)):
        return None
    if any(_is_folded_when_planned(frame, plan) for plan in logical):
        return None
    if caches and exchanges:
        calls = several_readers and any(_calls_functions(frame, plan) for plan in logical)
        return None if calls else Repeat.PLANNED
    known = _RUN_ANEW if several_readers else _RUN_ANEW | _FUNCTIONS
    plan = physical(frame, prepared=True)
    if _are_all(known, plan):
        return Repeat.AS_IT_IS
    kept = _EXCHANGED if exchanges else _CACHED if caches else frozenset()
    return Repeat.COPIED if _are_all(known | kept, plan) else None


def again(frame: DataFrame, how: Repeat) -> DataFrame:
    """The frame, to be run once more."""
    if how is Repeat.AS_IT_IS:
        return frame
    session = frame.sparkSession
    logical = analyzed(frame)
    if how is Repeat.COPIED:
        # Spark copies the physical plan before it prepares it, with new shuffles.
        stage = getattr(session._jvm, "org.apache.spark.sql.execution.adaptive.LogicalQueryStage")
        logical = stage(optimized(frame), physical(frame, prepared=False))
    return frame_of(session, logical)


def _begins_anew(plan: Any) -> bool:
    """Whether a plan is deterministic except for row numbers."""
    if plan.deterministic():
        return True
    own = all(map(_is_number, not_deterministic(plan.expressions())))
    return own and all(map(_begins_anew, children(plan)))


def _is_number(expression: Any) -> bool:
    if kind(expression) in _NUMBERS:
        return True
    others = not_deterministic(expression.children())
    return bool(others) and all(map(_is_number, others))


def _is_folded_when_planned(frame: DataFrame, logical: Any) -> bool:
    """Whether the optimised plan has a constant from outside of the rows: the time, the user or the
    schema; `cast('now' AS timestamp)` in any form; a variable of the session; the result of a
    subquery, which may read a view that is replaced later."""
    catalyst = "org.apache.spark.sql.catalyst"  # avoids a lookup per package level
    jvm = frame.sparkSession._jvm
    patterns = getattr(jvm, f"{catalyst}.trees.TreePattern")
    folded = (patterns.CURRENT_LIKE(), patterns.VARIABLE_REFERENCE(), patterns.PLAN_EXPRESSION())
    plain = getattr(jvm, f"{catalyst}.optimizer.ReplaceExpressions").apply(logical)
    if any(plain.containsPattern(pattern) for pattern in folded):
        return True
    # The optimizer's own rule: nothing else knows which strings mean the current time.
    return (
        not getattr(jvm, f"{catalyst}.optimizer.SpecialDatetimeValues")
        .apply(plain)
        .fastEquals(plain)
    )


def _calls_functions(frame: DataFrame, plan: Any) -> bool:
    """Whether a logical plan calls users' scalar functions."""
    tree = "org.apache.spark.sql.catalyst.trees.TreePattern"
    function = getattr(frame.sparkSession._jvm, tree).PYTHON_UDF()
    if "MapIn" not in kind(plan) and any(
        expression.containsPattern(function) for expression in elements(plan.expressions())
    ):
        return True
    return any(_calls_functions(frame, child) for child in children(plan))


def _are_all(known: frozenset[str], plan: Any) -> bool:
    name = kind(plan).removesuffix("Exec")
    if name == "BroadcastExchange":
        return all(_are_all(_OF_TABLES, child) for child in children(plan))
    if name == "InMemoryTableScan":
        return name in known and _are_all(known, plan.relation().cachedPlan())
    return name in known and all(_are_all(known, child) for child in children(plan))
