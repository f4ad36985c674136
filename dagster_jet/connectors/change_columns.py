"""Extra columns of change rows: change-data sources produce them, sinks apply them."""

from __future__ import annotations

OP = "op"
"""Kind of change: insert, update, delete or truncate."""
LSN, ROW = "_lsn", "_row"
"""The pair (LSN, row number) increases from change to change."""
OLD = "_old"
"""Struct of the old row before an update or deletion: at least its replica identity."""
UNCHANGED = "_unchanged"
"""Columns that an update did not change and whose value is unknown; they are null in the row."""
CHANGE_COLUMNS = (OP, LSN, ROW, OLD, UNCHANGED)
