"""Turns rows from another stage of the same task into an operator's input, without a JVM.

Does the same as Spark does with all other rows (`spark/planning`): computes the key's hash and
partition, the event time, and for an aggregation its first stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types

from dagster_jet.core.aggregate import SimpleAggregate, SimpleKind
from dagster_jet.operators.first_stage import FirstStage
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
)
from dagster_jet.operators.rows.casting import cast_rows
from dagster_jet.operators.rows.hashes import is_hashable, key_hashes

_ADDRESS = (PARTITION_COLUMN, HASH_COLUMN, TIME_COLUMN, ARRIVAL_COLUMN)
_OF_SETS = (SimpleKind.COUNT_DISTINCT, SimpleKind.COLLECT_SET, SimpleKind.MODE)


@dataclass(frozen=True)
class RowInput:
    """Conversion of rows to one input of an operator."""

    schema: pa.Schema
    """The operator's input schema (`Operator.input_schemas`)."""
    keys: tuple[str, ...]
    partition_count: int
    time: str | None = None
    """Column with the event time: a timestamp, or milliseconds."""
    lag_ms: int = 0
    """Milliseconds to subtract from the column's value to get the event time."""
    names: tuple[str, ...] = ()
    """New names of the rows' columns; empty: the names stay."""
    hashes_wide: bool = False
    """Integers are hashed as bigint and floating-point numbers as double, as for a processor."""
    first_stage: FirstStage | None = None
    is_spread: bool = False
    """Spark divides the rows among the partitions, or copies them, because they have no key."""

    def can_take(self, rows: pa.Schema) -> bool:
        """Whether rows with these columns give the same bits here as in the JVM.

        Spark and Python must hash the keys equally. For an aggregation no column may have a type
        whose values Spark and Arrow group or add up differently.
        """
        names = self.names or tuple(rows.names)
        of = dict(zip(names, rows.types, strict=True))
        if self.is_spread or not all(is_hashable(of[key]) for key in self.keys):
            return False
        if self.first_stage is None:
            # Otherwise it has columns that Spark computes.
            return all(name in of or name in _ADDRESS for name in self.schema.names)
        aggregates = [aggregate for _, aggregate in self.first_stage.aggregation.aggregates]
        if not all(column in of for aggregate in aggregates for column in aggregate.inputs):
            return False  # an expression, or a field of a struct
        has_sets = any(isinstance(a, SimpleAggregate) and a.kind in _OF_SETS for a in aggregates)
        return not any(types.is_floating(of[key]) for key in self.keys) and all(
            _adds_up_alike(kind) and not (has_sets and types.is_floating(kind))
            for kind in of.values()
        )

    def shape(self, rows: pa.Table, before_ms: int | None) -> tuple[pa.Table, int]:
        """Returns the rows in `schema`, and the number of late rows left out.

        Args:
            before_ms: `StepInput.before_ms`.

        Raises:
            BadRowError: a row has no event time, and the first stage needs one.
        """
        if self.names:
            rows = rows.rename_columns(list(self.names))
        hashes = key_hashes([rows.column(key) for key in self.keys], rows.num_rows,
                            wide=self.hashes_wide)  # fmt: skip
        address = {
            PARTITION_COLUMN: pa.array((hashes % self.partition_count).astype(np.int32)),
            HASH_COLUMN: pa.array(hashes),
            TIME_COLUMN: self._times(rows),
            ARRIVAL_COLUMN: pa.array(np.arange(rows.num_rows)),
        }
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        addressed, late = pa.table({**address, **columns}), 0
        if self.first_stage is not None:
            addressed, late = self.first_stage.partials(addressed, before_ms, self._moment(rows))
        return cast_rows(addressed.select(self.schema.names), self.schema), late

    def _moment(self, rows: pa.Table) -> str:
        """Column with the event time as exact as the rows have it."""
        if self.time is None or not types.is_timestamp(rows.schema.field(self.time).type):
            return TIME_COLUMN
        return self.time

    def _times(self, rows: pa.Table) -> pa.Array:
        if self.time is None:
            return pa.array(np.zeros(rows.num_rows, np.int64))
        column = rows.column(self.time).combine_chunks()
        missing = column.is_null().to_numpy(zero_copy_only=False)
        times = column.cast(pa.int64()).fill_null(0).to_numpy()
        if types.is_timestamp(column.type):
            per_ms = {"us": 1_000, "ns": 1_000_000, "ms": 1}[column.type.unit]
            times = times // per_ms  # rounded down, as Spark's unix_millis
        return pa.array(times - self.lag_ms, pa.int64(), mask=missing)


def _adds_up_alike(kind: pa.DataType) -> bool:
    return not types.is_decimal(kind) and (is_hashable(kind) or types.is_floating(kind))
