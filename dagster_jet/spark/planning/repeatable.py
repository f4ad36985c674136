"""Frames that can be run again for other rows: nothing in their plans is of the time of the first
run, and no run leaves anything behind that the next one would read instead of rows of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.spark.planning.logical_plans import children

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RUN_ANEW = frozenset(
    (
        *("Range", "MapInArrow", "PythonMapInArrow", "MapInPandas", "CollectMetrics"),
        *("Project", "Filter", "Coalesce", "Union", "Sort", "Expand", "Generate"),
        *("HashAggregate", "ObjectHashAggregate", "SortAggregate", "BroadcastHashJoin"),
        *("WholeStageCodegen", "InputAdapter", "ColumnarToRow", "RowToColumnar"),
    )
)
"""Physical nodes, without `Exec`, that begin from nothing in each run. What is not known is taken
for one that does not: exchanges and caches keep what they have made, scans what they have listed.
"""

_NUMBERS = frozenset(("MonotonicallyIncreasingID",))
"""Not deterministic, says Spark: the number of a row depends on those before it in its task. Each
run begins at 0."""
_OF_TABLES = frozenset(("RDDScan", "Project", "Filter", "WholeStageCodegen", "InputAdapter"))
"""What is broadcast is kept: a table that was read before, and nothing of the stream."""
_FUNCTIONS = frozenset(("BatchEvalPython", "ArrowEvalPython"))
"""Users' functions of values: said to be deterministic by default."""


def is_repeatable(frame: DataFrame, *, several_readers: bool) -> bool:
    """Whether each run of the frame is a new one. It is planned for it, and does not run.

    Args:
        several_readers: rows are made anew for each of several branches, which are to agree on
            them. What users' functions make of a row twice need not be the same.
    """
    execution = frame._jdf.queryExecution()
    logical = execution.analyzed()
    # `rand()` has its seed from the plan.
    if not _begins_anew(logical) or _is_folded_when_planned(frame, logical):
        return False
    known = _RUN_ANEW if several_readers else _RUN_ANEW | _FUNCTIONS
    return _are_all(known, execution.executedPlan())


def _begins_anew(plan: Any) -> bool:
    """Whether a plan is deterministic but for the numbers of rows."""
    if plan.deterministic():
        return True
    own = all(map(_is_number, _others(plan.expressions())))
    return own and all(map(_begins_anew, children(plan)))


def _is_number(expression: Any) -> bool:
    if expression.getClass().getSimpleName() in _NUMBERS:
        return True
    others = _others(expression.children())
    return bool(others) and all(map(_is_number, others))


def _others(expressions: Any) -> list[Any]:
    """Those that are not deterministic."""
    each = (expressions.apply(place) for place in range(expressions.size()))
    return [expression for expression in each if not expression.deterministic()]


def _is_folded_when_planned(frame: DataFrame, logical: Any) -> bool:
    """Something outside of the rows becomes a constant of the optimised plan: the time, the user or
    the schema; `cast('now' AS timestamp)`, in all the ways that lead to it; a variable of the
    session; what a subquery reads, which may be a view that somebody makes anew."""
    catalyst = "org.apache.spark.sql.catalyst"  # step by step it would be looked for
    jvm = frame.sparkSession._jvm
    patterns = getattr(jvm, f"{catalyst}.trees.TreePattern")
    folded = (patterns.CURRENT_LIKE(), patterns.VARIABLE_REFERENCE(), patterns.PLAN_EXPRESSION())
    plain = getattr(jvm, f"{catalyst}.optimizer.ReplaceExpressions").apply(logical)
    if any(plain.containsPattern(pattern) for pattern in folded):
        return True
    # The optimizer's own rule, because nothing else knows which strings are read as a clock.
    return (
        not getattr(jvm, f"{catalyst}.optimizer.SpecialDatetimeValues")
        .apply(plain)
        .fastEquals(plain)
    )


def _are_all(known: frozenset[str], physical: Any) -> bool:
    kind = physical.getClass().getSimpleName().removesuffix("Exec")
    if kind == "BroadcastExchange":
        return all(_are_all(_OF_TABLES, child) for child in children(physical))
    return kind in known and all(_are_all(known, child) for child in children(physical))
