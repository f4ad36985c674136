"""Finds selects that only choose and rename columns: a Python task can do these without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.spark.tasks.column_choice import ColumnChoice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plain_columns(given: DataFrame, returned: DataFrame) -> ColumnChoice | None:
    """The choice; None if `returned` is more than a choice of the columns of `given`."""
    if len(set(given.columns)) < len(given.columns):
        return None  # a name would be ambiguous
    before = given._jdf.queryExecution().analyzed()
    plan = returned._jdf.queryExecution().analyzed()
    if _kind(plan) != "Project" or not plan.child().equals(before):
        return None
    names = {attribute.exprId().id(): attribute.name() for attribute in _each(before.output())}
    taken, called = [], []
    for column in _each(plan.projectList()):
        attribute = column.child() if _kind(column) == "Alias" else column
        if _kind(attribute) != "AttributeReference":
            return None
        taken.append(names[attribute.exprId().id()])
        called.append(column.name())
    if len(set(called)) < len(called):
        return None
    return ColumnChoice(tuple(taken), tuple(called))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(place) for place in range(sequence.size())]
