"""Aggregates with mergeable partials: what Spark computes per batch, the state keeps merging.

An aggregate is a definition: the partial columns it needs, and how the result is finished from
them when a window closes. Aggregates of one stage that need the same partial share it.

Nulls in the column are ignored, as in SQL; no value at all gives null, a count 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dagster_jet.errors import ConfigurationError
from dagster_jet.processors.aggregation import Aggregate
from dagster_jet.processors.finishes import (
    Counted,
    CustomFinish,
    DistinctEstimate,
    Itself,
    Length,
    ListOfValues,
    QuantileEstimate,
    Quotient,
    ValueOf,
)
from dagster_jet.processors.partials.accumulator import Accumulator
from dagster_jet.processors.partials.by_time import ByTime
from dagster_jet.processors.partials.lists import AllValues, DistinctValues, TopValues
from dagster_jet.processors.partials.numbers import Count, Maximum, Minimum, Sum
from dagster_jet.processors.partials.sketches import HllSketch, KllSketch, datasketches
from dagster_jet.processors.state_format import StateFormat


def count(column: str | None = None) -> Aggregate:
    """Rows, or rows where `column` is not null."""
    return Aggregate("count", column, (Count(column),), Counted())


def sum(column: str) -> Aggregate:
    """Sum, in Spark's result type (bigint for integers). Floats: the order of merging may show
    in the last digits; integers and decimals are exact.

    A sum of them that does not fit the result type fails the job (within one epoch it is Spark that
    adds, and refuses, unless `spark.sql.ansi.enabled` is off). What may grow so large is cast to
    decimal or double before it is summed.
    """
    return Aggregate("sum", column, (Sum(column),), Itself())


def mean(column: str) -> Aggregate:
    """Arithmetic mean as double, kept as `sum` and count: of integers and decimals it is that of
    the exact sum, which must fit its type as any other."""
    return Aggregate("mean", column, (Sum(column), Count(column)), Quotient())


def min(column: str) -> Aggregate:
    """Smallest value."""
    return Aggregate("min", column, (Minimum(column),), Itself())


def max(column: str) -> Aggregate:
    """Largest value."""
    return Aggregate("max", column, (Maximum(column),), Itself())


def count_distinct(column: str) -> Aggregate:
    """How many different values, exactly: the state keeps every one of them."""
    return Aggregate("count_distinct", column, (DistinctValues(column),), Length())


def approx_count_distinct(column: str, *, lg_k: int = 12) -> Aggregate:
    """About how many different values, in bounded space (extra ``sketches``).

    Args:
        lg_k: 4 to 21. The relative standard error is about 1.04 / sqrt(2^lg_k), 1.6 % by default;
            a sketch takes 2^lg_k bytes at most.
    """
    if not 4 <= lg_k <= 21:
        raise ConfigurationError(f"lg_k: {lg_k} is outside 4 to 21.")
    datasketches()
    sketch = HllSketch(column, lg_k)
    name = f"approx_count_distinct({lg_k})"
    return Aggregate(name, column, (sketch,), DistinctEstimate(sketch))


def quantile(column: str, fraction: float, *, k: int = 200) -> Aggregate:
    """About the value below which `fraction` of the values lie, as double (extra ``sketches``).

    Several quantiles of one column share their sketch. The answer is one of the values; its rank
    is off by about 1.3 % of the count by default. Two runs over the same rows may answer
    differently within that: the sketch draws lots.

    Args:
        fraction: 0 to 1; 0.5 is the median.
        k: 8 to 65535; the error shrinks about as 1 / k.
    """
    if not 0 <= fraction <= 1:
        raise ConfigurationError(f"fraction: {fraction} is outside 0 to 1.")
    if not 8 <= k <= 65535:
        raise ConfigurationError(f"k: {k} is outside 8 to 65535.")
    datasketches()
    sketch = KllSketch(column, k)
    return Aggregate(f"quantile({fraction})", column, (sketch,), QuantileEstimate(sketch, fraction))


def first(column: str) -> Aggregate:
    """Value of the earliest event that has one; of several at that time the smallest."""
    return Aggregate("first", column, (ByTime(column, latest=False),), ValueOf())


def last(column: str) -> Aggregate:
    """Value of the latest event that has one; of several at that time the largest."""
    return Aggregate("last", column, (ByTime(column, latest=True),), ValueOf())


def top_n(n: int, column: str, *, by: str | None = None, smallest: bool = False) -> Aggregate:
    """A list of the `n` largest values of `column`, largest first.

    Args:
        by: rank the rows by this column instead: ``top_n(3, "flight", by="delay")`` lists the
            flights of the three longest delays. Of equal ranks the larger value comes first.
        smallest: the smallest, smallest first.
    """
    if n < 1:
        raise ConfigurationError(f"n: top_n({n}) would be empty.")
    rank = by or column
    name = f"top_n({n},{rank},{'smallest' if smallest else 'largest'})"
    partial = TopValues(column, rank, n, smallest)
    return Aggregate(name, column, (partial,), ListOfValues(by_time=False))


def collect_list(column: str) -> Aggregate:
    """All values as a list, by event time, then by value. The state keeps them all."""
    return Aggregate("collect_list", column, (AllValues(column),), ListOfValues(by_time=True))


def custom(
    create: Callable[[], Any],
    accumulate: Callable[[Any, dict[str, Any]], Any],
    combine: Callable[[Any, Any], Any],
    finish: Callable[[Any], Any],
    *,
    columns: Sequence[str],
    result_type: str | pa.DataType,
    state_format: str = "plain",
) -> Aggregate:
    """An aggregate of your own, in Python: rows are collected and visited one by one.

    All four functions must be pure but for their own accumulator, and the result must not depend
    on the order of rows, nor on how they were divided among accumulators: batches, shards and
    restarts divide them differently.

    Args:
        create: a new accumulator; see `state_format` for what it may be.
        accumulate: takes an accumulator and a row (a dict of `columns`); returns the accumulator.
        combine: puts two accumulators together, into either or a new one.
        finish: the result, None for null.
        columns: what `accumulate` sees of a row. Rows with nulls come too.
        result_type: an Arrow type, or one of "boolean", "int", "bigint", "double", "string",
            "binary", "date", "timestamp".
        state_format: how accumulators are saved, as in `map_stateful`.

    What a stage has accumulated is found again by the name of the result column: unlike that of
    other aggregates it must stay.
    """
    if not columns:
        raise ConfigurationError("columns: a custom aggregate needs at least one column.")
    kind = result_type if isinstance(result_type, pa.DataType) else _TYPES.get(result_type)
    if kind is None:
        raise ConfigurationError(
            f"result_type: {result_type!r} is none of {', '.join(_TYPES)}.",
            cure="Give an Arrow type, such as pa.list_(pa.string()).",
        )
    if state_format not in {known.value for known in StateFormat}:
        raise ConfigurationError(
            f"state_format: {state_format!r} is unknown.", cure='Use "plain" or "pickle".'
        )
    saved = StateFormat(state_format)
    accumulator = Accumulator(tuple(columns), create, accumulate, combine, saved)
    return Aggregate("custom", None, (accumulator,), CustomFinish(finish, kind, saved))


_TYPES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

__all__ = [
    "Aggregate",
    "approx_count_distinct",
    "collect_list",
    "count",
    "count_distinct",
    "custom",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "quantile",
    "sum",
    "top_n",
]
