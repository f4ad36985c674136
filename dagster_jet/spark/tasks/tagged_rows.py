"""Rows of several kinds in one table: a tag with the kind, then columns that the kinds share.

One table goes in each direction between Spark and a Python task. The n-th column with a type holds
the n-th field with this type of every kind; a row has nulls in the columns that its kind does not
use. So the table is about as wide as its widest kind, however many kinds there are. With one kind
there is no tag, and the table is that kind's.

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
        fields = [pa.field(column_name(n), each) for n, each in enumerate(self.types)]
        return pa.schema([*common, pa.field(TAG_COLUMN, pa.int32()), *fields])

    def own(self, tag: int) -> list[pa.Field]:
        """Fields of one kind that are not shared."""
        fields = list(self.kinds[tag])
        return fields if self.shared is None or self.is_one else fields[1:]

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """Types of the columns that the kinds share."""
        return self._layout[0]

    def columns(self, tag: int) -> tuple[int, ...]:
        """The column of each of a kind's own fields."""
        return self._layout[1][tag]

    def rows_of(self, table: pa.Table, tag: int) -> pa.Table:
        """The rows of one kind, in its own schema; `table` may have further columns at its end."""
        if self.is_one:
            return table.select(range(len(self.kinds[0])))
        lead = 0 if self.shared is None else 1
        places = [*range(lead), *(lead + 1 + column for column in self.columns(tag))]
        rows = table.select(places).filter(pc.equal(table.column(lead), tag))
        return pa.Table.from_arrays(rows.columns, schema=self.kinds[tag])

    def batch(self, tag: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Converts rows of one kind to the layout; only for kinds without a shared column."""
        assert self.shared is None
        if self.is_one:
            return rows
        count = rows.num_rows
        columns = [pa.repeat(pa.scalar(tag, pa.int32()), count)]
        own = dict(zip(self.columns(tag), rows.columns, strict=True))
        for column, each in enumerate(self.types):
            columns.append(own[column] if column in own else pa.nulls(count, each))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @cached_property
    def _layout(self) -> tuple[tuple[pa.DataType, ...], tuple[tuple[int, ...], ...]]:
        types: list[pa.DataType] = []
        columns = []
        for tag in range(len(self.kinds)):
            taken: list[int] = []
            for field in self.own(tag):
                free = (n for n, each in enumerate(types) if n not in taken and each == field.type)
                taken.append(next(free, len(types)))
                if taken[-1] == len(types):
                    types.append(field.type)
            columns.append(tuple(taken))
        return tuple(types), tuple(columns)


def column_name(column: int) -> str:
    return f"__{column}"
