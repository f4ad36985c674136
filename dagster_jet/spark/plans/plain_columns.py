"""Finds selects that only choose and rename columns: a Python task can do these without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.spark.plans.nodes import analyzed, elements, kind
from dagster_jet.spark.tasks.column_choice import ColumnChoice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def plain_columns(given: DataFrame, returned: DataFrame) -> ColumnChoice | None:
    """The choice; None if `returned` is more than a choice of the columns of `given`."""
    if len(set(given.columns)) < len(given.columns):
        return None  # a name would be ambiguous
    before, plan = analyzed(given), analyzed(returned)
    if kind(plan) != "Project" or not plan.child().equals(before):
        return None
    names = {attribute.exprId().id(): attribute.name() for attribute in elements(before.output())}
    taken, called = [], []
    for column in elements(plan.projectList()):
        attribute = column.child() if kind(column) == "Alias" else column
        if kind(attribute) != "AttributeReference":
            return None
        taken.append(names[attribute.exprId().id()])
        called.append(column.name())
    if len(set(called)) < len(called):
        return None
    return ColumnChoice(tuple(taken), tuple(called))
