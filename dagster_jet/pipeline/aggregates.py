"""Aggregates with mergeable partials: what Spark computes per batch, the state keeps merging.

An aggregate is a definition. `partials` names the partial columns it needs as (function, column)
pairs that the JVM computes; each partial merges with itself (`sum`, `min` or `max`), and the
result is finished from the merged partials when a window closes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Partial(Enum):
    """A partial that the JVM computes, and how two of its values merge."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"

    @property
    def merge(self) -> str:
        """Arrow's name of the function that merges two partials of this kind."""
        return "sum" if self in (Partial.COUNT, Partial.SUM) else self.value


@dataclass(frozen=True)
class Aggregate:
    """One output column. Nulls in `column` are ignored, as in SQL; no rows means null."""

    name: str
    column: str | None
    partials: tuple[Partial, ...]


def count(column: str | None = None) -> Aggregate:
    """Rows, or rows where `column` is not null."""
    return Aggregate("count", column, (Partial.COUNT,))


def sum(column: str) -> Aggregate:
    """Sum, in Spark's result type (bigint for integers). Floats: the order of merging may show
    in the last digits; integers and decimals are exact."""
    return Aggregate("sum", column, (Partial.SUM,))


def mean(column: str) -> Aggregate:
    """Arithmetic mean as double, kept as sum and count."""
    return Aggregate("mean", column, (Partial.SUM, Partial.COUNT))


def min(column: str) -> Aggregate:
    """Smallest value."""
    return Aggregate("min", column, (Partial.MIN,))


def max(column: str) -> Aggregate:
    """Largest value."""
    return Aggregate("max", column, (Partial.MAX,))
