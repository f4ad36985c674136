"""Partials that are lists: distinct values, all values, the greatest values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import PipelineError
from dagster_jet.operators.partials.by_time import timed, timed_sql
from dagster_jet.operators.partials.ordering import order_in_groups
from dagster_jet.operators.partials.partial import (
    Groups,
    Merger,
    Partial,
    as_list,
    one_array,
    sql_name,
    struct_of,
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
        if pa.types.is_nested(arrived.value_type):
            raise PipelineError(
                f"count_distinct({self.column!r}): {arrived.value_type} cannot be compared.",
                cure="Count a hash of it: select xxhash64(...) first.",
            )
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
        value, rank = sql_name(self.column), sql_name(self.rank)
        pairs = (
            f"collect_list(named_struct('rank', {rank}, 'value', {value})) "
            f"FILTER (WHERE {rank} IS NOT NULL AND {value} IS NOT NULL)"
        )
        ascending = "true" if self.smallest else "false"
        return f"slice(sort_array({pairs}, {ascending}), 1, {self.n})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        rank, value = (one_array(rows.column(name)) for name in (self.rank, self.column))
        missing = pc.or_(rank.is_null(), value.is_null())
        return struct_of({"rank": rank, "value": value}, missing)

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
        fields = [pc.struct_field(pairs, name) for name in ("rank", "value")]
        order = order_in_groups(numbers, fields, descending=not self.smallest)
        # Sorting inside the groups did not change their sizes.
        place = np.arange(len(order)) - starts[numbers]
        counts = np.minimum(np.diff(starts), self.n)
        best = pairs.take(pa.array(order[place < self.n]))
        return as_list(best, np.concatenate(([0], np.cumsum(counts))), lists.type)


def _gathered(values: pa.Array, groups: Groups) -> pa.Array:
    """The non-null values of every group as a list, with Spark's list type."""
    taken = values.take(pa.array(groups.rows))
    valid = np.asarray(taken.is_valid())
    counts = np.bincount(groups.numbers[valid], minlength=groups.count)
    kind = pa.list_(pa.field("element", values.type, nullable=False))
    return as_list(taken.drop_null(), np.concatenate(([0], np.cumsum(counts))), kind)
