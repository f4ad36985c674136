"""Applies changes of a table to another one, in order: `mode="mirror"`.

Changes of a batch to the same key are combined and written once. The results are applied in runs:
where a change needs a value that only the table has, earlier changes are written first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.change_columns import (
    OLD,
    OP,
    UNCHANGED,
    check_order,
    table_columns,
    unknown_key,
)
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.refused_values import RefusedValues
from dagster_jet.connectors.sql.row_writer import write_rows
from dagster_jet.connectors.staging import RowsWriter
from dagster_jet.errors import SinkMismatchError

if TYPE_CHECKING:
    from sqlalchemy import Connection

Key = tuple[Any, ...]


def refused_changes(
    values: RefusedValues, changes: pa.RecordBatch, key: Sequence[str]
) -> dict[int, str]:
    """By row number, why the table refuses the values of a change, or the mirror one of a key: it
    compares keys as Python's values."""
    columns = dict(zip(changes.schema.names, changes.columns, strict=True))
    writes = pc.is_in(columns[OP], pa.array(["insert", "update"])).to_numpy(zero_copy_only=False)
    rows = changes.select(table_columns(changes.schema).names)
    kept = [frozenset(names or ()) for names in columns[UNCHANGED].to_pylist()]
    absent = {
        name: pa.array([name in names for names in kept])
        for name in rows.schema.names
        if any(name in names for names in kept)
    }
    found = {number: why for number, why in values.of(rows, absent).items() if writes[number]}
    keys = [*map(columns.get, key), *(pc.struct_field(columns[OLD], name) for name in key)]
    of_python = RefusedValues("", {})
    return {**of_python.of(pa.RecordBatch.from_arrays(keys, [*key, *key])), **found}


@dataclass
class ChangesWriter(RowsWriter):
    """Stages changes; refuses those whose row is unknown."""

    key: tuple[str, ...] = ()
    job: str = ""
    sink: str = ""

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises `SinkMismatchError` if a key is null, or its changes have no order."""
        check_order(batch, self.key, self.job, self.sink)
        why = unknown_key(batch, self.key)
        if why is not None:
            raise SinkMismatchError(
                f"{why}.",
                job=self.job,
                stage=self.sink,
                cure="Let the key be the source's replica identity: its primary key, or what "
                "alter table ... replica identity says. Changes of before that can only be "
                "filtered out.",
            )
        super().write(batch)


@dataclass(frozen=True)
class _Put:
    """New content of a row: the values of one change, except for some columns."""

    change: int
    """Number of the change in its batch."""
    of_others: Mapping[str, int] = field(default_factory=dict)
    """Number of the earlier change with the value, by column."""
    in_table: frozenset[str] = frozenset()
    """Columns whose values only the table has."""


@dataclass
class Mirror:
    """Applies changes within the caller's transaction."""

    connection: Connection
    place: SqlPlace
    key: tuple[str, ...]
    job: str
    sink: str
    _pending: dict[Key, _Put | None] = field(default_factory=dict)
    """By key; None: the row is deleted."""

    def apply(self, batches: Iterable[pa.RecordBatch]) -> None:
        """
        Raises:
            SinkMismatchError: the table lacks a row of which a change keeps a value.
        """
        for batch in batches:
            self._apply(batch)

    def _apply(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(n) for n, name in enumerate(batch.schema.names)}
        keys = list(zip(*(columns[name].to_pylist() for name in self.key), strict=True))
        old = [pc.struct_field(columns[OLD], name).to_pylist() for name in self.key]
        old_keys = list(zip(*old, strict=True))
        ops, unchanged = columns[OP].to_pylist(), columns[UNCHANGED].to_pylist()
        rows = batch.select(table_columns(batch.schema).names)
        for number, op in enumerate(ops):
            if op == "truncate":
                self._pending.clear()
                self.connection.execute(self.place.clause().delete())
            elif op == "delete":
                self._pending[old_keys[number]] = None
            elif op == "update":
                kept = unchanged[number] or ()
                self._update(rows, number, old_keys[number], keys[number], kept)
            else:
                self._pending[keys[number]] = _Put(number)
        self._flush(rows)

    def _update(
        self, rows: pa.RecordBatch, number: int, old: Key, key: Key, unchanged: Sequence[str]
    ) -> None:
        before = self._pending.get(old)
        in_table = frozenset(unchanged)
        of_others: dict[str, int] = {}
        if before is not None:
            in_table &= before.in_table
            of_others = {
                name: before.of_others.get(name, before.change)
                for name in unchanged
                if name not in in_table
            }
        if old != key:
            if in_table:  # the table has the row, under its old key
                self._flush(rows)
                self._move(rows.schema, old, key)
            else:
                self._pending[old] = None
        self._pending[key] = _Put(number, of_others, in_table)

    def _move(self, schema: pa.Schema, old: Key, key: Key) -> None:
        kinds = [schema.field(name).type for name in self.key]
        values = zip((*key, *old), kinds * 2, strict=True)
        row = pa.RecordBatch.from_arrays(
            [pa.array([value], kind) for value, kind in values], [*self.key, *self.key]
        )
        # An earlier change has deleted any row with the new key, or has changed its key.
        self._write("delete", row.select(range(len(key))))
        self._change("move", row)

    def _flush(self, rows: pa.RecordBatch) -> None:
        pending, self._pending = self._pending, {}
        gone = [key for key, put in pending.items() if put is None]
        if gone:
            kinds = [rows.schema.field(name).type for name in self.key]
            columns = [pa.array([key[n] for key in gone], kind) for n, kind in enumerate(kinds)]
            self._write("delete", pa.RecordBatch.from_arrays(columns, list(self.key)))
        for in_table, batch in _by_columns(rows, [put for put in pending.values() if put]):
            self._change("update", batch) if in_table else self._write("upsert", batch)

    def _write(self, mode: str, batch: pa.RecordBatch) -> int:
        return write_rows(self.connection, self.place, mode, self.key, [batch])

    def _change(self, mode: str, batch: pa.RecordBatch) -> None:
        changed = self._write(mode, batch)
        if changed < batch.num_rows:
            raise SinkMismatchError(
                f"the table {self.place.table!r} lacks {batch.num_rows - changed} of "
                f"{batch.num_rows} rows whose changes left a large value as it was: the changes do "
                "not have that value.",
                job=self.job,
                stage=self.sink,
                cure="Copy the rows that this table lacks from the source's table, and start "
                "again: the decided rows are kept, and that start commits them. With "
                "replica identity full the changes have all values.",
            )


def _by_columns(
    rows: pa.RecordBatch, puts: Sequence[_Put]
) -> Iterator[tuple[frozenset[str], pa.RecordBatch]]:
    """Rows to write, grouped by the columns that they keep."""
    groups: dict[frozenset[str], list[_Put]] = {}
    for put in puts:
        groups.setdefault(put.in_table, []).append(put)
    for in_table, some in groups.items():
        names = [name for name in rows.schema.names if name not in in_table]
        columns = [
            rows.column(name).take(pa.array([put.of_others.get(name, put.change) for put in some]))
            for name in names
        ]
        yield in_table, pa.RecordBatch.from_arrays(columns, names)
