"""Finds in Spark's plans whether a function passes a column on, and changes nothing else by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.spark.plans.nodes import analyzed, children, elements, kind, optimized

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def is_same_result(one: DataFrame, other: DataFrame) -> bool:
    """Whether both frames have the same rows, as far as Spark's optimizer can tell."""
    return bool(optimized(one).sameResult(optimized(other)))


def passes_on(given: DataFrame, returned: DataFrame, name: str) -> bool:
    """Whether a column of `given` is in `returned` and not used for anything else."""
    stream, plan = analyzed(given), analyzed(returned)
    column = next(one for one in elements(stream.output()) if one.name() == name)
    comes_out = any(one.semanticEquals(column) for one in elements(plan.output()))
    return comes_out and not _uses(plan, column, stream)


def _uses(plan: Any, column: Any, stream: Any) -> bool:
    if plan.equals(stream):
        return False
    if plan.references().contains(column):
        is_choice = kind(plan) == "Project"
        for one in elements(plan.expressions()):
            if one.references().contains(column) and not (is_choice and one.semanticEquals(column)):
                return True
    return any(_uses(child, column, stream) for child in children(plan))
