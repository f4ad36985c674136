"""Extra columns of change rows: change-data sources produce them, sinks apply them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OP = "op"
"""Kind of change: insert, update, delete or truncate."""
LSN, ROW = "_lsn", "_row"
"""The pair (LSN, row number) increases from change to change."""
OLD = "_old"
"""Struct of the old row before an update or deletion: at least its replica identity."""
UNCHANGED = "_unchanged"
"""Columns that an update did not change and whose value is unknown; they are null in the row."""
CHANGE_COLUMNS = (OP, LSN, ROW, OLD, UNCHANGED)


def table_columns(rows: pa.Schema) -> pa.Schema:
    """Returns the columns of the table: those of the rows without the columns of the change."""
    return pa.schema([one for one in rows if one.name not in CHANGE_COLUMNS])


def not_changes(rows: pa.Schema, key: Sequence[str]) -> str | None:
    """Returns why the rows are not changes, as a clause; None if they are."""
    if missing := [name for name in CHANGE_COLUMNS if name not in rows.names]:
        return f"the rows have no column {', '.join(missing)}, as changes have"
    old = rows.field(OLD).type
    known = [one.name for one in old] if pa.types.is_struct(old) else []
    if missing := [name for name in key if name not in known]:
        return f"{OLD} has no field {', '.join(missing)}"
    return None


def in_order(changes: DataFrame) -> DataFrame:
    """Orders all changes of an epoch for one writer: a change of a key concerns two rows."""
    return changes.repartition(1).sortWithinPartitions(LSN, ROW)


def unknown_key(changes: pa.RecordBatch, key: Sequence[str]) -> str | None:
    """Returns, as a clause, which change has a null in its key, now or before; None if none has."""
    op, old = changes.column(OP), changes.column(OLD)
    is_row = pc.not_equal(op, "truncate")
    has_old = pc.is_in(op, pa.array(["update", "delete"]))
    for name in key:
        now, before = pc.is_null(changes.column(name)), pc.is_null(pc.struct_field(old, name))
        is_bad = pc.or_(pc.and_(is_row, now), pc.and_(has_old, before))
        if pc.any(is_bad).as_py():
            row = changes.filter(is_bad).slice(0, 1).to_pylist()[0]
            return (
                f"the key column {name} is null in a change, or its value before the change is "
                f"not known ({row[OP]} at {row[LSN]}, {row[ROW]})"
            )
    return None


def unknown_value(changes: pa.RecordBatch) -> str | None:
    """Returns, as a clause, which change does not have a value that it left as it was."""
    for row in changes.select([OP, LSN, ROW, UNCHANGED]).to_pylist():
        if row[UNCHANGED]:
            return (
                f"a change does not have the value of {row[UNCHANGED][0]}, which it left as it was "
                f"({row[OP]} at {row[LSN]}, {row[ROW]})"
            )
    return None
