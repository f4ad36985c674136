"""Partials that are lists: distinct values, all values, the greatest values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.ddl import sql_name
from dagster_jet.errors import PipelineError
from dagster_jet.operators.partials.extremes import ranked, ranked_sql, timed, timed_sql
from dagster_jet.operators.partials.ordering import order_in_groups
from dagster_jet.operators.partials.partial import (
    Groups,
    Merger,
    Partial,
    as_list,
    one_array,
    take_groups,
)
from dagster_jet.operators.rows.keys import one_zero_and_nan


@dataclass(frozen=True)
class DistinctValues(Partial):
    """Every value once, unordered: exact and unbounded. -0.0 equals 0.0, all NaNs are equal."""

    column: str

    grows: ClassVar[bool] = True

    def column_name(self, result: str) -> str:
        return f"__distinct({self.column})"

    def sql(self, time: str) -> str:
        return f"collect_set({sql_name(self.column)})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return rows.column(self.column)

    @property
    def gather(self) -> Merger:
        return self._gather

    @property
    def combine(self) -> Merger:
        return self._union

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        check_comparable(self.column, arrived.value_type)
        return arrived

    def admit(self, arrived: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
        if not pa.types.is_floating(arrived.type.value_type):
            return arrived
        return self._each(one_array(arrived))  # Spark's set may have both zeros

    def _gather(self, values: pa.Array, groups: Groups) -> pa.Array:
        return self._each(_gathered(values, groups))

    def _each(self, lists: pa.Array) -> pa.Array:
        return self._union(lists, Groups(np.arange(len(lists)), np.arange(len(lists) + 1)))

    def _union(self, lists: pa.Array, groups: Groups) -> pa.Array:
        values, starts = take_groups(lists, groups)
        numbers = np.repeat(np.arange(groups.count), np.diff(starts))
        pairs = pa.table({"group": numbers, "value": one_zero_and_nan(values)})
        once = pairs.group_by(["group", "value"], use_threads=False).aggregate([])
        # A hash aggregation returns its groups in no defined order.
        owners = once["group"].to_numpy()
        order = np.argsort(owners, kind="stable")
        distinct = one_array(once["value"]).take(pa.array(order))
        counts = np.bincount(owners, minlength=groups.count)
        return as_list(distinct, np.concatenate(([0], np.cumsum(counts))), lists.type)


@dataclass(frozen=True)
class ValueCounts(Partial):
    """Every value with the number of its rows: list<struct<value, count>>. -0.0 equals 0.0, all
    NaNs are equal."""

    column: str

    grows: ClassVar[bool] = True

    def column_name(self, result: str) -> str:
        return f"__counts({self.column})"

    def sql(self, time: str) -> str:
        name = sql_name(self.column)
        return (
            f"collect_list(named_struct('value', {name}, 'count', 1L)) "
            f"FILTER (WHERE {name} IS NOT NULL)"
        )

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        values = one_array(rows.column(self.column))
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(values))
        fields = [
            pa.field("value", values.type),
            pa.field("count", pa.int64(), nullable=False),
        ]
        return pa.StructArray.from_arrays([values, ones], fields=fields, mask=values.is_null())

    @property
    def gather(self) -> Merger:
        return _gathered

    @property
    def combine(self) -> Merger:
        return self._add_up

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        check_comparable(self.column, arrived.value_type.field("value").type)
        return arrived

    def admit(self, arrived: pa.ChunkedArray) -> pa.Array:
        lists = one_array(arrived)
        return self._add_up(lists, Groups(np.arange(len(lists)), np.arange(len(lists) + 1)))

    def _add_up(self, lists: pa.Array, groups: Groups) -> pa.Array:
        pairs, starts = take_groups(lists, groups)
        numbers = np.repeat(np.arange(groups.count), np.diff(starts))
        values = one_zero_and_nan(pc.struct_field(pairs, "value"))
        rows = pa.table({"g": numbers, "v": values, "n": pc.struct_field(pairs, "count")})
        counted = rows.group_by(["g", "v"], use_threads=False).aggregate([("n", "sum")])
        owners = counted["g"].to_numpy()
        # A hash aggregation returns its groups in no defined order.
        place = pa.array(np.argsort(owners, kind="stable"))
        fields = [one_array(counted[name]).take(place) for name in ("v", "n_sum")]
        merged = pa.StructArray.from_arrays(fields, fields=list(lists.type.value_type))
        counts = np.bincount(owners, minlength=groups.count)
        return as_list(merged, np.concatenate(([0], np.cumsum(counts))), lists.type)


@dataclass(frozen=True)
class AllValues(Partial):
    """Every non-null value with its event time; the finalizer sorts them."""

    column: str

    grows: ClassVar[bool] = True

    def column_name(self, result: str) -> str:
        return f"__list({self.column})"

    def sql(self, time: str) -> str:
        name = sql_name(self.column)
        return f"collect_list({timed_sql(time, name)}) FILTER (WHERE {name} IS NOT NULL)"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return timed(rows.column(self.column), times)

    @property
    def gather(self) -> Merger:
        return _gathered

    @property
    def combine(self) -> Merger:
        return self._concatenate

    def _concatenate(self, lists: pa.Array, groups: Groups) -> pa.Array:
        values, starts = take_groups(lists, groups)
        return as_list(values, starts, lists.type)


@dataclass(frozen=True)
class TopValues(Partial):
    """The `n` values with the greatest rank (or smallest), as list<struct<rank, value>> in order.

    Equal ranks: the greater (smaller) value first. Rows without rank or value are ignored.
    """

    column: str
    rank: str
    n: int
    smallest: bool

    def column_name(self, result: str) -> str:
        end = "bottom" if self.smallest else "top"
        return f"__{end}({self.n},{self.column},{self.rank})"

    def sql(self, time: str) -> str:
        pairs = f"collect_list({ranked_sql(self.rank, self.column)})"
        ascending = "true" if self.smallest else "false"
        return f"slice(sort_array({pairs}, {ascending}), 1, {self.n})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return ranked(rows, self.rank, self.column)

    @property
    def gather(self) -> Merger:
        return self._gather

    @property
    def combine(self) -> Merger:
        return self._best

    def _gather(self, values: pa.Array, groups: Groups) -> pa.Array:
        lists = _gathered(values, groups)
        return self._best(lists, Groups(np.arange(groups.count), np.arange(groups.count + 1)))

    def _best(self, lists: pa.Array, groups: Groups) -> pa.Array:
        pairs, starts = take_groups(lists, groups)
        numbers = np.repeat(np.arange(groups.count), np.diff(starts))
        order = order_in_groups(numbers, [pairs], descending=not self.smallest)
        # Sorting inside the groups did not change their sizes.
        place = np.arange(len(order)) - starts[numbers]
        counts = np.minimum(np.diff(starts), self.n)
        best = pairs.take(pa.array(order[place < self.n]))
        return as_list(best, np.concatenate(([0], np.cumsum(counts))), lists.type)


def check_comparable(column: str, kind: pa.DataType) -> None:
    """
    Raises:
        PipelineError: only Spark can compare values of the type, or the column has no type.
    """
    if pa.types.is_null(kind):
        raise PipelineError(
            f"distinct values of {column!r}: the column has no type (void), and so no values.",
            cure=f"Give it a type with select(), such as cast({column} AS string).",
        )
    if pa.types.is_nested(kind):
        raise PipelineError(
            f"distinct values of {column!r}: {kind} cannot be compared.",
            cure="Use a text of it, to_json(...), or a hash of it, xxhash64(...).",
        )


def _gathered(values: pa.Array, groups: Groups) -> pa.Array:
    """The non-null values of every group as a list, with Spark's list type."""
    taken = values.take(pa.array(groups.rows))
    valid = np.asarray(taken.is_valid())
    counts = np.bincount(groups.numbers[valid], minlength=groups.count)
    kind = pa.list_(pa.field("element", values.type, nullable=False))
    return as_list(taken.drop_null(), np.concatenate(([0], np.cumsum(counts))), kind)
