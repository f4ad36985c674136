"""First and last value by event time, kept with their time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.partials.ordering import order_in_groups
from dagster_jet.operators.partials.partial import (
    Groups,
    Merger,
    Partial,
    one_array,
    sql_name,
    struct_of,
)


@dataclass(frozen=True)
class ByTime(Partial):
    """struct<time, value> of the earliest or latest non-null value.

    At the same time the smaller value counts as earlier, so the result does not depend on how rows
    were split into batches. Values of nested types are not compared: of several with the same time
    any may be returned.
    """

    column: str
    latest: bool

    def column_name(self, result: str) -> str:
        return f"__{'last' if self.latest else 'first'}({self.column})"

    def sql(self, time: str) -> str:
        name = sql_name(self.column)
        function = "max" if self.latest else "min"
        return f"{function}({timed_sql(time, name)}) FILTER (WHERE {name} IS NOT NULL)"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return timed(rows.column(self.column), times)

    @property
    def combine(self) -> Merger:
        return self._choose

    def _choose(self, values: pa.Array, groups: Groups) -> pa.Array:
        candidates = values.take(pa.array(groups.rows))
        valid = np.asarray(candidates.is_valid())
        rows, numbers = groups.rows[valid], groups.numbers[valid]
        candidates = candidates.drop_null()
        fields = [pc.struct_field(candidates, name) for name in ("time", "value")]
        order = order_in_groups(numbers, fields)
        sorted_numbers = numbers[order]
        ends = np.ones(len(order), bool)
        different = sorted_numbers[1:] != sorted_numbers[:-1]
        if self.latest:
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
