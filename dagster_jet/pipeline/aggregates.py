"""Aggregates with mergeable partials: what Spark computes per batch, the state keeps merging.

An aggregate is a definition: the partial columns it needs, and how the result is finished from
them when a window closes. Aggregates of one stage that need the same partial share it.

Nulls in the column are ignored, as in SQL; no value at all gives null, a count 0.
"""

from __future__ import annotations

from dagster_jet.processors.aggregation import Aggregate
from dagster_jet.processors.finishes import Counted, Itself, Quotient
from dagster_jet.processors.partials.numbers import Count, Maximum, Minimum, Sum


def count(column: str | None = None) -> Aggregate:
    """Rows, or rows where `column` is not null."""
    return Aggregate("count", column, (Count(column),), Counted())


def sum(column: str) -> Aggregate:
    """Sum, in Spark's result type (bigint for integers). Floats: the order of merging may show
    in the last digits; integers and decimals are exact."""
    return Aggregate("sum", column, (Sum(column),), Itself())


def mean(column: str) -> Aggregate:
    """Arithmetic mean as double, kept as sum and count."""
    return Aggregate("mean", column, (Sum(column), Count(column)), Quotient())


def min(column: str) -> Aggregate:
    """Smallest value."""
    return Aggregate("min", column, (Minimum(column),), Itself())


def max(column: str) -> Aggregate:
    """Largest value."""
    return Aggregate("max", column, (Maximum(column),), Itself())


__all__ = ["Aggregate", "count", "max", "mean", "min", "sum"]
