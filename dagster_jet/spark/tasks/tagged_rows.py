"""Rows of several kinds in one table: a tag with the kind, then the columns of every kind.

One table goes in each direction between Spark and a Python task. A row has nulls in the columns of
the other kinds. With one kind there is no tag, and the table is that kind's.

Source: tagged outputs in Apache Beam.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

TAG_COLUMN = "__tag"


@dataclass(frozen=True)
class TaggedRows:
    """Layout of such a table."""

    kinds: tuple[pa.Schema, ...]
    shared: pa.Field | None = None
    """Column that all kinds begin with; the table has it once."""

    @property
    def is_one(self) -> bool:
        return len(self.kinds) == 1

    @cached_property
    def schema(self) -> pa.Schema:
        if self.is_one:
            return self.kinds[0]
        common = [] if self.shared is None else [self.shared]
        fields = [*common, pa.field(TAG_COLUMN, pa.int32())]
        for tag in range(len(self.kinds)):
            fields += [
                field.with_name(column_name(tag, field.name)).with_nullable(True)
                for field in self.own(tag)
            ]
        return pa.schema(fields)

    def own(self, tag: int) -> list[pa.Field]:
        """Fields of one kind that are not shared."""
        fields = list(self.kinds[tag])
        return fields if self.shared is None or self.is_one else fields[1:]

    def rows_of(self, table: pa.Table, tag: int) -> pa.Table:
        """The rows of one kind, in its own schema; `table` may have further columns at its end."""
        if self.is_one:
            return table.select(range(len(self.kinds[0])))
        lead = 0 if self.shared is None else 1
        first = lead + 1 + sum(len(self.own(before)) for before in range(tag))
        places = [*range(lead), *range(first, first + len(self.own(tag)))]
        rows = table.select(places).filter(pc.equal(table.column(lead), tag))
        return pa.Table.from_arrays(rows.columns, schema=self.kinds[tag])

    def batch(self, tag: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Converts rows of one kind to the layout; only for kinds without a shared column."""
        assert self.shared is None
        if self.is_one:
            return rows
        count = rows.num_rows
        columns = [pa.repeat(pa.scalar(tag, pa.int32()), count)]
        for other in range(len(self.kinds)):
            if other == tag:
                columns += rows.columns
            else:
                columns += [pa.nulls(count, field.type) for field in self.own(other)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def column_name(tag: int, name: str) -> str:
    """Name of a kind's column in the table."""
    return f"{tag}_{name}"
