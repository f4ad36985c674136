"""Counts, sums, extremes: partials that Arrow's hash aggregation merges."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.ddl import sql_name
from dagster_jet.errors import PipelineError
from dagster_jet.operators.partials.partial import Merger, Partial


@dataclass(frozen=True)
class Count(Partial):
    """Number of rows, or of rows where `column` is not null."""

    column: str | None = None

    def column_name(self, result: str) -> str:
        return f"__count({self.column or ''})"

    def sql(self, time: str) -> str:
        return f"count({'1' if self.column is None else sql_name(self.column)})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        if self.column is None:
            return pc.is_valid(pa.repeat(1, rows.num_rows)).cast(pa.int64())
        return pc.is_valid(rows.column(self.column)).cast(pa.int64())

    @property
    def combine(self) -> Merger:
        return "sum"


@dataclass(frozen=True)
class Sum(Partial):
    """Sum; null without values."""

    column: str

    def column_name(self, result: str) -> str:
        return f"__sum({self.column})"

    def sql(self, time: str) -> str:
        return f"sum({sql_name(self.column)})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        values = rows.column(self.column)
        return values.cast(_sum_type(values.type))

    @property
    def combine(self) -> Merger:
        return "sum"

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        return _merged_by_arrow(arrived, f"sum({self.column!r})")


@dataclass(frozen=True)
class Minimum(Partial):
    column: str

    def column_name(self, result: str) -> str:
        return f"__min({self.column})"

    def sql(self, time: str) -> str:
        return f"min({sql_name(self.column)})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return rows.column(self.column)

    @property
    def combine(self) -> Merger:
        return "min"

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        return _merged_by_arrow(arrived, f"min({self.column!r})")


@dataclass(frozen=True)
class Maximum(Partial):
    """NaN is greater than any number, as in Spark."""

    column: str

    def column_name(self, result: str) -> str:
        return f"__max({self.column})"

    def sql(self, time: str) -> str:
        return f"max({sql_name(self.column)})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return rows.column(self.column)

    @property
    def combine(self) -> Merger:
        return "max"

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        return _merged_by_arrow(arrived, f"max({self.column!r})")


def _merged_by_arrow(kind: pa.DataType, what: str) -> pa.DataType:
    """Returns `kind`; raises if only Spark can compare and add its values."""
    if pa.types.is_nested(kind) or pa.types.is_duration(kind):
        raise PipelineError(
            f"{what}: partial results of type {kind} cannot be merged.",
            cure="Take one of its fields, or cast it to a number, in a select() before the stage.",
        )
    return kind


def _sum_type(kind: pa.DataType) -> pa.DataType:
    """Result type of Spark's `sum`."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(38, kind.precision + 10), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else pa.int64()
