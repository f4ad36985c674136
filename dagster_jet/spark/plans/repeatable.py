"""Checks whether a frame can be run again for other rows: its plan contains nothing from the time
of the first run, and no run leaves data that the next one would read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.spark.plans.nodes import (
    analyzed,
    children,
    kind,
    not_deterministic,
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


def is_repeatable(frame: DataFrame, *, several_readers: bool) -> bool:
    """Whether each run of the frame starts anew. Plans it without running it.

    Args:
        several_readers: each of several branches makes the rows again, and they must agree. Users'
            functions may return different values for the same row.
    """
    logical = analyzed(frame)
    # The seed of `rand()` is part of the plan.
    if not _begins_anew(logical) or _is_folded_when_planned(frame, logical):
        return False
    known = _RUN_ANEW if several_readers else _RUN_ANEW | _FUNCTIONS
    return _are_all(known, physical(frame, prepared=True))


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


def _are_all(known: frozenset[str], plan: Any) -> bool:
    name = kind(plan).removesuffix("Exec")
    if name == "BroadcastExchange":
        return all(_are_all(_OF_TABLES, child) for child in children(plan))
    return name in known and all(_are_all(known, child) for child in children(plan))
