"""The value of the first or the last row by event time or by another column, with that rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.ddl import sql_name
from dagster_jet.operators.partials.ordering import order_in_groups
from dagster_jet.operators.partials.partial import (
    Groups,
    Merger,
    Partial,
    nullable,
    one_array,
    struct_of,
)


@dataclass(frozen=True)
class ExtremeByRank(Partial):
    """struct<rank, value> of the row with the least or the greatest rank, of those with both.

    Of equal ranks the smaller value counts as smaller, so the result does not depend on how rows
    were split into batches.
    """

    column: str
    greatest: bool
    rank: str | None = None
    """None: the event time."""

    def column_name(self, result: str) -> str:
        if self.rank is None:
            return f"__{'last' if self.greatest else 'first'}({self.column})"
        return f"__{'max' if self.greatest else 'min'}_by({self.column},{self.rank})"

    def sql(self, time: str) -> str:
        function, value = "max" if self.greatest else "min", sql_name(self.column)
        if self.rank is None:
            return f"{function}({timed_sql(time, value)}) FILTER (WHERE {value} IS NOT NULL)"
        return f"{function}({ranked_sql(self.rank, self.column)})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        if self.rank is None:
            return timed(rows.column(self.column), times)
        return ranked(rows, self.rank, self.column)

    @property
    def combine(self) -> Merger:
        return self._choose

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        return nullable(arrived)

    def admit(self, arrived: pa.ChunkedArray) -> pa.ChunkedArray:
        return arrived.cast(nullable(arrived.type))

    def _choose(self, values: pa.Array, groups: Groups) -> pa.Array:
        candidates = values.take(pa.array(groups.rows))
        valid = np.asarray(candidates.is_valid())
        rows, numbers = groups.rows[valid], groups.numbers[valid]
        candidates = candidates.drop_null()
        order = order_in_groups(numbers, [candidates])
        sorted_numbers = numbers[order]
        ends = np.ones(len(order), bool)
        different = sorted_numbers[1:] != sorted_numbers[:-1]
        if self.greatest:
            ends[:-1] = different
        else:
            ends[1:] = different
        chosen = np.full(groups.count, -1, np.int64)
        chosen[sorted_numbers[ends]] = rows[order][ends]
        return values.take(pa.array(chosen, mask=chosen < 0))


def timed_sql(time: str, name: str) -> str:
    return f"named_struct('time', {time}, 'value', {name})"


def timed(values: pa.ChunkedArray, times: pa.Array) -> pa.Array:
    """struct<time, value>, null where the value is null."""
    one = one_array(values)
    return struct_of({"time": times, "value": one}, one.is_null())


def ranked_sql(rank: str, value: str) -> str:
    """The argument of an aggregate function, with its filter."""
    rank, value = sql_name(rank), sql_name(value)
    return (
        f"named_struct('rank', {rank}, 'value', {value})) "
        f"FILTER (WHERE {rank} IS NOT NULL AND {value} IS NOT NULL"
    )


def ranked(rows: pa.Table, rank: str, value: str) -> pa.Array:
    """struct<rank, value>, null where one of both is null."""
    fields = {"rank": one_array(rows.column(rank)), "value": one_array(rows.column(value))}
    return struct_of(fields, pc.or_(*(column.is_null() for column in fields.values())))
