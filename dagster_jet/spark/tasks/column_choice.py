"""Selects that only choose and rename columns: most selects downstream of a stage."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class ColumnChoice:
    """Columns that such a select returns, in its order."""

    before: tuple[str, ...]
    """Input columns."""
    after: tuple[str, ...]
    """Their names in the result."""

    def then(self, later: ColumnChoice) -> ColumnChoice:
        """Combines two consecutive selects."""
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
