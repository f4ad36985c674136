"""From rows to what an operator takes, without a JVM: where the rows come from another stage of the
same task.

The same as what Spark does with rows that come from anywhere else (`spark/planning`): the key's
hash and partition, the event time, and for an aggregation the first of its two stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import types

from dagster_jet.core.aggregate import SimpleAggregate, SimpleKind
from dagster_jet.operators.first_stage import FirstStage
from dagster_jet.operators.operator import HASH_COLUMN, PARTITION_COLUMN, TIME_COLUMN
from dagster_jet.operators.rows.hashes import is_hashable, key_hashes


@dataclass(frozen=True)
class RowInput:
    """What one input of an operator makes of rows."""

    schema: pa.Schema
    """The operator's (`Operator.input_schemas`)."""
    keys: tuple[str, ...]
    partition_count: int
    time: str | None = None
    """The column with the event time: a timestamp, or milliseconds."""
    lag_ms: int = 0
    """How long the event time is before what the column says."""
    names: tuple[str, ...] = ()
    """New names of the rows' columns; none: they keep theirs."""
    hashes_wide: bool = False
    """Integers are hashed as bigint and floating-point numbers as double, as a processor does."""
    first_stage: FirstStage | None = None

    def can_take(self, rows: pa.Schema) -> bool:
        """Whether rows with these columns become here, bit by bit, what they become in the JVM.

        Keys are to have a hash in common. For an aggregation no column may be of a type whose
        values Spark and Arrow group or add up in ways of their own.
        """
        names = self.names or tuple(rows.names)
        of = dict(zip(names, rows.types, strict=True))
        if not all(is_hashable(of[key]) for key in self.keys):
            return False
        if self.first_stage is None:
            return True
        kinds = {aggregate.kind for _, aggregate in self.first_stage.aggregation.aggregates
                 if isinstance(aggregate, SimpleAggregate)}  # fmt: skip
        has_sets = SimpleKind.COUNT_DISTINCT in kinds
        return not any(types.is_floating(of[key]) for key in self.keys) and all(
            _adds_up_alike(kind) and not (has_sets and types.is_floating(kind))
            for kind in of.values()
        )

    def shape(self, rows: pa.Table, before_ms: int | None) -> tuple[pa.Table, int]:
        """In `schema`; and how many rows were left out because they were late.

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
        }
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        addressed, late = pa.table({**address, **columns}), 0
        if self.first_stage is not None:
            addressed, late = self.first_stage.partials(addressed, before_ms)
        return addressed.select(self.schema.names).cast(self.schema), late

    def _times(self, rows: pa.Table) -> pa.Array:
        if self.time is None:
            return pa.array(np.zeros(rows.num_rows, np.int64))
        column = rows.column(self.time).combine_chunks()
        missing = column.is_null().to_numpy(zero_copy_only=False)
        times = column.cast(pa.int64()).fill_null(0).to_numpy()
        if types.is_timestamp(column.type):
            per_ms = {"us": 1_000, "ns": 1_000_000, "ms": 1}[column.type.unit]
            times = times // per_ms  # down, as Spark's unix_millis
        return pa.array(times - self.lag_ms, pa.int64(), mask=missing)


def _adds_up_alike(kind: pa.DataType) -> bool:
    return not types.is_decimal(kind) and (is_hashable(kind) or types.is_floating(kind))
