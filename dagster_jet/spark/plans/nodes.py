"""Spark's plans of a frame, and their traversal. Plans and expressions are Java objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def analyzed(frame: DataFrame) -> Any:
    """The logical plan as the user wrote it, with its names resolved."""
    return frame._jdf.queryExecution().analyzed()


def optimized(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().optimizedPlan()


def physical(frame: DataFrame, *, prepared: bool) -> Any:
    """
    Args:
        prepared: as it runs, with exchanges and generated code; else as Spark first chose it.
    """
    execution = frame._jdf.queryExecution()
    return execution.executedPlan() if prepared else execution.sparkPlan()


def frame_of(session: SparkSession, logical: Any) -> DataFrame:
    """A frame with this logical plan."""
    from pyspark.sql import DataFrame

    dataset = getattr(session._jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, logical), session)


def schema_json(frame: DataFrame) -> str:
    """A frame's schema as Spark's JSON, unparsed."""
    return str(frame._jdf.schema().json())


def kind(node: Any) -> str:
    """The simple class name of a plan or an expression."""
    return str(node.getClass().getSimpleName())


def elements(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence."""
    return [sequence.apply(place) for place in range(sequence.size())]


def not_deterministic(expressions: Any) -> list[Any]:
    """The expressions of a Scala sequence that are not deterministic."""
    return [expression for expression in elements(expressions) if not expression.deterministic()]


def children(plan: Any) -> Iterator[Any]:
    """Yields child plans, including those of subqueries."""
    yield from elements(plan.children())
    yield from elements(plan.subqueries())


def leaves(plan: Any) -> Iterator[Any]:
    """Yields the leaves, from which the plan's rows come."""
    below = list(children(plan))
    if not below:
        yield plan
    for child in below:
        yield from leaves(child)
