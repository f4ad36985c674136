"""All aggregates of one stage: their shared partial columns, merging, and results.

    raw rows --(JVM: `spark_columns`, or `first_stage`)--> arrived --`admit`--> state
      state + state --`merge`--> state --`finish`--> result columns

The window, session and rolling operators share this; they differ in what they group by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.aggregate import Aggregate
from dagster_jet.core.state_format import StateFormat
from dagster_jet.operators.aggregates.computation import Computation, computation
from dagster_jet.operators.aggregates.grouping import merge_groups
from dagster_jet.operators.partials.accumulator import Accumulator
from dagster_jet.operators.partials.partial import Merger, Partial

ROW_COUNT = "__rows"
"""int64: number of input rows in a row of partials."""


@dataclass(frozen=True)
class Aggregation:
    """All aggregates of a stage, by output name. Frozen and small, because tasks receive it."""

    aggregates: tuple[tuple[str, Aggregate], ...]

    @cached_property
    def computations(self) -> tuple[tuple[str, Computation], ...]:
        """Computation of each output, by name."""
        return tuple((result, computation(aggregate)) for result, aggregate in self.aggregates)

    @cached_property
    def partials(self) -> tuple[tuple[str, Partial], ...]:
        """Distinct partial columns, by name."""
        found = {
            partial.column_name(result): partial
            for result, computed in self.computations
            for partial in computed.partials
        }
        return tuple(found.items())

    @property
    def accumulator_formats(self) -> dict[str, StateFormat]:
        """State formats of the accumulators of users' own aggregates, by names of partials."""
        return {
            name: partial.state_format
            for name, partial in self.partials
            if isinstance(partial, Accumulator)
        }

    @property
    def grows(self) -> bool:
        """True if the state of a group grows with its rows."""
        return any(partial.grows for _, partial in self.partials)

    def spark_columns(self, moment: str) -> tuple[tuple[str, str], ...]:
        """Columns of the JVM's `agg(...)`: (name, SQL expression) per partial, and the row count.

        Args:
            moment: SQL of the event time, a timestamp or a bigint of ms; ``0L`` for a stage without
                event time.
        """
        columns = [(name, partial.sql(moment)) for name, partial in self.partials]
        return (*columns, (ROW_COUNT, "count(1)"))

    def first_stage(
        self,
        rows: pa.Table,
        moments: pa.ChunkedArray | pa.Array,
        group: Sequence[str],
        others: Sequence[tuple[str, Merger]] = (),
    ) -> pa.Table:
        """Computes what the JVM would send for `rows`, grouped by their columns `group`.

        Args:
            moments: the event time of each row, a timestamp or int64 ms.
            others: further columns of `rows`, with their mergers.
        """
        table = rows.select([*group, *(name for name, _ in others)])
        mergers: list[tuple[str, Merger]] = []
        for name, partial in self.partials:
            table = table.append_column(name, partial.lift(rows, moments))
            mergers.append((name, partial.gather))
        ones = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
        table = table.append_column(ROW_COUNT, ones)
        mergers.append((ROW_COUNT, "sum"))
        return merge_groups(table, group, [*mergers, *others], merged_before=False)

    def state_schema(self, arrived: pa.Schema) -> pa.Schema:
        """`arrived` with its partial columns in the types of the state."""
        for name, partial in self.partials:
            place = arrived.get_field_index(name)
            field = arrived.field(place)
            arrived = arrived.set(place, field.with_type(partial.state_type(field.type)))
        return arrived

    def admit(self, arrived: pa.Table) -> pa.Table:
        """Converts arrived partials to the form of the state."""
        for name, partial in self.partials:
            place = arrived.schema.get_field_index(name)
            column = arrived.column(place)
            admitted = partial.admit(column)
            if admitted is not column:
                field = arrived.schema.field(place).with_type(admitted.type)
                arrived = arrived.set_column(place, field, admitted)
        return arrived

    def merge(
        self, table: pa.Table, group: Sequence[str], others: Sequence[tuple[str, Merger]] = ()
    ) -> pa.Table:
        """One row per `group`; merges partials, row count and `others` (with their mergers)."""
        mergers = [(name, partial.combine) for name, partial in self.partials]
        return merge_groups(table, group, [*mergers, (ROW_COUNT, "sum"), *others])

    def result_fields(self, state: pa.Schema) -> list[pa.Field]:
        fields = []
        for result, computed in self.computations:
            types = [state.field(p.column_name(result)).type for p in computed.partials]
            fields.append(pa.field(result, computed.finish.result_type(types)))
        return fields

    def finish(self, merged: pa.Table) -> list[pa.ChunkedArray | pa.Array]:
        """Output columns for merged rows of partials, in the order of `aggregates`."""
        return [
            computed.finish([merged.column(p.column_name(result)) for p in computed.partials])
            for result, computed in self.computations
        ]


def row_count(table: pa.Table) -> int:
    """Number of input rows in rows of partials."""
    total: int | None = pc.sum(table.column(ROW_COUNT)).as_py()
    return total or 0
