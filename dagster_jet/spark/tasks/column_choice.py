"""Some of the columns of rows, under names of their own: what most selects behind a stage do."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class ColumnChoice:
    """What such a select leaves, in its order."""

    before: tuple[str, ...]
    """The columns that it takes."""
    after: tuple[str, ...]
    """What it calls them."""

    def then(self, later: ColumnChoice) -> ColumnChoice:
        """Both selects, one after the other."""
        of = dict(zip(self.after, self.before, strict=True))
        return ColumnChoice(tuple(of[name] for name in later.before), later.after)

    def schema(self, rows: pa.Schema) -> pa.Schema:
        pairs = zip(self.before, self.after, strict=True)
        return pa.schema([rows.field(before).with_name(after) for before, after in pairs])

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [rows.column(name) for name in self.before]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema(rows.schema))

    def table(self, rows: pa.Table) -> pa.Table:
        columns = [rows.column(name) for name in self.before]
        return pa.Table.from_arrays(columns, schema=self.schema(rows.schema))
