"""Extra columns of change rows: change-data sources produce them, sinks apply them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.errors import SinkMismatchError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OP = "op"
"""Kind of change: insert, update, delete or truncate."""
LSN, ROW = "_lsn", "_row"
"""In a database's log, the pair (LSN, row number) increases from change to change."""
OFFSET, PARTITION = "_offset", "_partition"
"""In a topic, the offset increases from change to change of one partition."""
ORDERED_BY = "_ordered_by"
"""In a topic, names of columns: changes with equal values in them are in one partition. If there
are none, all changes are."""
OLD = "_old"
"""Struct of the old row before an update or deletion: at least its replica identity."""
UNCHANGED = "_unchanged"
"""Columns that an update did not change and whose value is unknown; they are null in the row."""
IN_LOG, IN_TOPIC = (LSN, ROW), (OFFSET, PARTITION)
"""Columns of a change's position."""


def change_columns(rows: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns of the change, of rows with these columns."""
    position = (*IN_TOPIC, ORDERED_BY) if OFFSET in rows and LSN not in rows else IN_LOG
    return (OP, *position, OLD, UNCHANGED)


def table_columns(rows: pa.Schema) -> pa.Schema:
    """Returns the columns of the table: those of the rows without the columns of the change."""
    others = change_columns(rows.names)
    return pa.schema([one for one in rows if one.name not in others])


def not_changes(rows: pa.Schema, key: Sequence[str]) -> str | None:
    """Returns why the rows are not changes, as a clause; None if they are."""
    if missing := [name for name in change_columns(rows.names) if name not in rows.names]:
        return f"the rows have no column {', '.join(missing)}, as changes have"
    old = rows.field(OLD).type
    known = [one.name for one in old] if pa.types.is_struct(old) else []
    if missing := [name for name in key if name not in known]:
        return f"{OLD} has no field {', '.join(missing)}"
    return None


def in_order(changes: DataFrame) -> DataFrame:
    """Orders all changes of an epoch for one writer: a change of a key concerns two rows.

    Offsets of different partitions are compared, too. Their changes are of different keys
    (`check_order`), so any order between them is right.
    """
    return changes.repartition(1).sortWithinPartitions(*_position(changes.columns))


def check_order(changes: pa.RecordBatch, key: Sequence[str], job: str, sink: str) -> None:
    """
    Raises:
        SinkMismatchError: changes of one key may be in several partitions of a topic, in an order
            that nobody knows.
    """
    if ORDERED_BY not in change_columns(changes.schema.names):
        return
    for names in set(map(_as_tuple, changes.column(ORDERED_BY).to_pylist())):
        if not set(names) <= set(key):
            raise SinkMismatchError(
                f"the topic's messages have the key {', '.join(names)}, so changes of one "
                f"{', '.join(key)} may be in several partitions, which have no common order.",
                job=job,
                stage=sink,
                cure="Let the sink's key have all columns of the messages' key, let Debezium send "
                "another key (message.key.columns), or let the topic have one partition.",
            )


def _as_tuple(names: Sequence[str] | None) -> tuple[str, ...]:
    return ("an unknown one",) if names is None else tuple(names)


def _position(columns: Sequence[str]) -> tuple[str, ...]:
    return IN_TOPIC if OFFSET in change_columns(columns) else IN_LOG


def _shown(change: dict[str, Any]) -> str:
    at = ", ".join(str(change[name]) for name in _position(tuple(change)))
    return f"{change[OP]} at {at}"


def unknown_key(changes: pa.RecordBatch, key: Sequence[str]) -> str | None:
    """Returns, as a clause, which change has a null in its key, now or before; None if none has."""
    op, old = changes.column(OP), changes.column(OLD)
    is_row = pc.not_equal(op, "truncate")
    has_old = pc.is_in(op, pa.array(["update", "delete"]))
    for name in key:
        now, before = pc.is_null(changes.column(name)), pc.is_null(pc.struct_field(old, name))
        is_bad = pc.or_(pc.and_(is_row, now), pc.and_(has_old, before))
        if pc.any(is_bad).as_py():
            known = changes.select([OP, *_position(changes.schema.names)])
            row = known.filter(is_bad).slice(0, 1).to_pylist()[0]
            return (
                f"the key column {name} is null in a change, or its value before the change is "
                f"not known ({_shown(row)})"
            )
    return None


def unknown_value(changes: pa.RecordBatch) -> str | None:
    """Returns, as a clause, which change does not have a value that it left as it was."""
    for row in changes.select([OP, *_position(changes.schema.names), UNCHANGED]).to_pylist():
        if row[UNCHANGED]:
            return (
                f"a change does not have the value of {row[UNCHANGED][0]}, which it left as it was "
                f"({_shown(row)})"
            )
    return None
