"""Aggregates with mergeable partials: Spark computes them per epoch, and the state merges them.

An aggregate is a frozen definition. Operators know the partial columns it needs and compute its
result from them when a window closes. Aggregates of one stage share equal partials.

A `column` is a column's name or an SQL expression over the rows' columns (`"price * n"`). A name
that is no word, such as `user-id`, is quoted inside an expression (`` "`user-id` + 1" ``). Nulls
are ignored, as in SQL. Without any value the result is null; a count is 0. `where` is an SQL
condition: rows for which it is not true are ignored.

Example for `aggregate(...)` and `rolling_aggregate(...)`, with the names of the result columns:
    >>> columns = {
    ...     "n": count(),
    ...     "late": count_if("delay > 15"),
    ...     "mean": mean("delay", where="not cancelled"),
    ...     "worst": top_n(3, "flight", by="delay"),
    ...     "newest": last("struct(flight, delay)"),
    ... }
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from dagster_jet.core.aggregate import (
    RESULT_TYPES,
    Aggregate,
    Correlation,
    CustomAggregate,
    DistinctSketch,
    ExtremeBy,
    Quantile,
    SimpleAggregate,
    SimpleKind,
    TopN,
)
from dagster_jet.core.arrow_types import ArrowType
from dagster_jet.core.ddl import is_reference, sql_name
from dagster_jet.core.library import missing
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import ConfigurationError

A = TypeVar("A")


def count(column: str | None = None, *, where: str | None = None) -> Aggregate:
    """Return the number of rows, or of rows where `column` is not null; bigint, 0 for none."""
    counted = column if where is None else _where(column or "(1)", where)
    return SimpleAggregate(counted, SimpleKind.COUNT)


def count_if(condition: str) -> Aggregate:
    """Return the number of rows for which an SQL condition is true; bigint, 0 for none."""
    return count(where=condition)


def sum(column: str, *, where: str | None = None) -> Aggregate:
    """Return the sum, in Spark's result type (bigint for integers).

    Sums of integers and decimals are exact. A sum that does not fit the result type fails the job
    (except within one epoch if `spark.sql.ansi.enabled` is off, because Spark adds there). Cast the
    column to decimal or double if a sum may grow so large. The last digits of a sum of floats may
    depend on the order of merging.
    """
    return SimpleAggregate(_where(column, where), SimpleKind.SUM)


def mean(column: str, *, where: str | None = None) -> Aggregate:
    """Return the arithmetic mean as double, from a count and a `sum`, which must fit its type."""
    return SimpleAggregate(_where(column, where), SimpleKind.MEAN)


def min(column: str, *, where: str | None = None) -> Aggregate:
    """Return the smallest value."""
    return SimpleAggregate(_where(column, where), SimpleKind.MIN)


def max(column: str, *, where: str | None = None) -> Aggregate:
    """Return the largest value."""
    return SimpleAggregate(_where(column, where), SimpleKind.MAX)


def count_distinct(column: str, *, where: str | None = None) -> Aggregate:
    """Return the exact number of distinct values; the state keeps all of them."""
    return SimpleAggregate(_where(column, where), SimpleKind.COUNT_DISTINCT)


def approx_count_distinct(column: str, *, lg_k: int = 12, where: str | None = None) -> Aggregate:
    """Return the approximate number of distinct values, in bounded space (extra ``sketches``).

    Args:
        lg_k: 4 to 21. The relative standard error is about 1.04 / sqrt(2^lg_k), 1.6 % by default; a
            sketch has at most 2^lg_k bytes.

    Raises:
        ConfigurationError: `lg_k` is outside its range.
        MissingEnvironmentError: the package ``datasketches`` is not installed.
    """
    if not 4 <= lg_k <= 21:
        raise ConfigurationError(f"lg_k: {lg_k} is outside 4 to 21.")
    _require_sketches()
    return DistinctSketch(_where(column, where), lg_k)


def quantile(column: str, fraction: float, *, k: int = 200, where: str | None = None) -> Aggregate:
    """Return the approximate value below which `fraction` of the values lie (extra ``sketches``).

    The result is one of the values, as a double. The default rank error is about 1.3 % of the
    count. The sketch uses random numbers, so two runs over the same rows may give different results
    within that error. Several quantiles of one column share their sketch.

    Args:
        fraction: 0 to 1; 0.5 is the median.
        k: 8 to 65535; the error is roughly proportional to 1 / k.

    Raises:
        ConfigurationError: `fraction` or `k` is outside its range.
        MissingEnvironmentError: the package ``datasketches`` is not installed.

    Example:
        >>> median = quantile("delay", 0.5)
    """
    if not 0 <= fraction <= 1:
        raise ConfigurationError(f"fraction: {fraction} is outside 0 to 1.")
    if not 8 <= k <= 65535:
        raise ConfigurationError(f"k: {k} is outside 8 to 65535.")
    _require_sketches()
    return Quantile(_where(column, where), fraction, k)


def first(column: str, *, where: str | None = None) -> Aggregate:
    """Return the value of the earliest event that has one; the smallest in case of a tie.

    The first values of two columns may be of two rows. ``first("struct(a, b)")`` is of one row, and
    its fields may be null.
    """
    return SimpleAggregate(_where(column, where), SimpleKind.FIRST)


def last(column: str, *, where: str | None = None) -> Aggregate:
    """Return the value of the latest event that has one; the largest in case of a tie.

    The last values of two columns may be of two rows. ``last("struct(a, b)")`` is of one row, and
    its fields may be null.
    """
    return SimpleAggregate(_where(column, where), SimpleKind.LAST)


def max_by(column: str, by: str, *, where: str | None = None) -> Aggregate:
    """Return the value of `column` in the row with the largest `by`; the largest in case of a tie.

    Rows in which one of both is null are ignored. ``max_by("struct(*)", "price")`` is a whole row.
    """
    return ExtremeBy(_where(column, where), by, greatest=True)


def min_by(column: str, by: str, *, where: str | None = None) -> Aggregate:
    """Return the value of `column` in the row with the smallest `by`; the smallest in case of a
    tie. Rows in which one of both is null are ignored."""
    return ExtremeBy(_where(column, where), by, greatest=False)


def bool_and(column: str, *, where: str | None = None) -> Aggregate:
    """Return whether a boolean is true in all rows."""
    return SimpleAggregate(_where(column, where), SimpleKind.BOOL_AND)


def bool_or(column: str, *, where: str | None = None) -> Aggregate:
    """Return whether a boolean is true in any row."""
    return SimpleAggregate(_where(column, where), SimpleKind.BOOL_OR)


def variance(column: str, *, where: str | None = None) -> Aggregate:
    """Return the sample variance as double; null for fewer than two values.

    Values are converted to double. The last digits may depend on the order of merging, as those of
    `stddev` and `corr`.
    """
    return SimpleAggregate(_where(column, where), SimpleKind.VARIANCE)


def stddev(column: str, *, where: str | None = None) -> Aggregate:
    """Return the sample standard deviation, the square root of `variance`."""
    return SimpleAggregate(_where(column, where), SimpleKind.STDDEV)


def corr(column: str, other: str, *, where: str | None = None) -> Aggregate:
    """Return Pearson's correlation of two numbers, over the rows that have both.

    It is a double; null for fewer than two rows, and if one of the numbers is always the same.
    """
    return Correlation(_where(column, where), other)


def mode(column: str, *, where: str | None = None) -> Aggregate:
    """Return the most frequent value, the smallest in case of a tie. The state keeps the number of
    each value."""
    return SimpleAggregate(_where(column, where), SimpleKind.MODE)


def top_n(
    n: int,
    column: str,
    *,
    by: str | None = None,
    smallest: bool = False,
    where: str | None = None,
) -> Aggregate:
    """Return a list of the `n` largest values of `column`, largest first.

    Args:
        n: at least 1.
        column: column of the listed values.
        by: rank the rows by this column instead: ``top_n(3, "flight", by="delay")`` lists the
            flights with the three longest delays. If ranks are equal, the larger value comes first.
        smallest: list the smallest values instead, smallest first.

    Raises:
        ConfigurationError: `n` is below 1.
    """
    if n < 1:
        raise ConfigurationError(f"n: top_n({n}) would be empty.")
    return TopN(_where(column, where), by or column, n, smallest)


def collect_list(column: str, *, where: str | None = None) -> Aggregate:
    """Return a list of all values, by event time, then by value. The state keeps all of them."""
    return SimpleAggregate(_where(column, where), SimpleKind.COLLECT_LIST)


def collect_set(column: str, *, where: str | None = None) -> Aggregate:
    """Return a list of the distinct values, in order. The state keeps all of them."""
    return SimpleAggregate(_where(column, where), SimpleKind.COLLECT_SET)


def custom(
    create: Callable[[], A],
    accumulate: Callable[[A, dict[str, Any]], A],
    combine: Callable[[A, A], A],
    finish: Callable[[A], Any],
    *,
    columns: Sequence[str],
    result_type: str | ArrowType,
    state_format: Literal["plain", "pickle"] = "plain",
) -> Aggregate:
    """Return a user-defined aggregate in Python: rows are collected and visited one by one.

    The four functions may modify only their own accumulator. The result must not depend on the
    order of rows or their division among accumulators (by batches, shards and restarts).

    Args:
        create: returns a new accumulator, of a type that `state_format` allows.
        accumulate: takes an accumulator and a row (a dict of `columns`); returns the accumulator.
        combine: merges two accumulators into one of them, or into a new one, and returns it.
        finish: returns the result; None for null.
        columns: the columns that `accumulate` receives. Rows with nulls are included.
        result_type: an Arrow type, or one of "boolean", "int", "bigint", "double", "string",
            "binary", "date", "timestamp".
        state_format: format of saved accumulators, as in `map_stateful`.

    Saved accumulators are matched by the name of the result column, so this name must not change
    (the names of other aggregates may).

    Raises:
        ConfigurationError: no columns, or an unknown type or format.

    Example:
        >>> product = custom(
        ...     create=lambda: 1.0,
        ...     accumulate=lambda total, row: total * row["factor"],
        ...     combine=lambda a, b: a * b,
        ...     finish=lambda total: total,
        ...     columns=["factor"],
        ...     result_type="double",
        ... )
    """
    if not columns:
        raise ConfigurationError("columns: a custom aggregate needs at least one column.")
    if result_type not in RESULT_TYPES and not _is_arrow_type(result_type):
        raise ConfigurationError(
            f"result_type: {result_type!r} is unknown. The known types are "
            f"{', '.join(RESULT_TYPES)}.",
            cure="Give an Arrow type, such as pa.list_(pa.string()).",
        )
    if state_format not in {known.value for known in StateFormat}:
        raise ConfigurationError(
            f"state_format: {state_format!r} is unknown.", cure='Use "plain" or "pickle".'
        )
    return CustomAggregate(
        None,
        tuple(columns),
        create,
        accumulate,
        combine,
        finish,
        result_type,
        StateFormat(state_format),
    )


def _where(column: str, condition: str | None) -> str:
    """An expression that is the column where the condition is true, else null."""
    if condition is None:
        return column
    value = sql_name(column) if is_reference(column) else column
    return f"if({condition}, {value}, null)"


def _is_arrow_type(given: object) -> bool:
    """For an Arrow type, Arrow is loaded already; for the name of a type it is not loaded."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(given, arrow.DataType)


def _require_sketches() -> None:
    """Check for the package of the extra ``sketches`` without loading it."""
    if find_spec("datasketches") is None:
        needs = "approx_count_distinct and quantile need the package 'datasketches'"
        raise missing("dagster-jet[sketches]", needs)


__all__ = [
    "Aggregate",
    "approx_count_distinct",
    "bool_and",
    "bool_or",
    "collect_list",
    "collect_set",
    "corr",
    "count",
    "count_distinct",
    "count_if",
    "custom",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "mode",
    "quantile",
    "stddev",
    "sum",
    "top_n",
    "variance",
]
