"""What a row that is a change of a table has beside the table's columns; sources make such rows,
and sinks apply them."""

from __future__ import annotations

OP = "op"
"""insert, update, delete or truncate."""
LSN, ROW = "_lsn", "_row"
"""Together they grow from change to change."""
OLD = "_old"
"""A struct with the row's replica identity before an update or a deletion, or more of the row."""
UNCHANGED = "_unchanged"
"""The columns that an update left as they were, and of which the value is not known: they are null.
"""
CHANGE_COLUMNS = (OP, LSN, ROW, OLD, UNCHANGED)
