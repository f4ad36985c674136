"""Writes rows to a table, within the caller's transaction."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from dagster_jet.connectors.sql.json_values import json_texts
from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, is_postgres, sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

_AT_ONCE = 1_000


def write_rows(
    connection: Connection,
    place: SqlPlace,
    mode: str,
    key: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> int:
    """Writes batches, which may have different columns but at most one row per key.

    Args:
        mode: "append", "upsert" or "delete"; "update" changes existing rows, "move" changes their
            key: its batches have the columns of the new key, then those of the old one.

    Returns:
        Number of rows that the database has found or inserted.
    """
    written = 0
    for given in batches:
        batch = given.select(list(key)) if mode == "delete" else given
        write = _by_copy if is_postgres(connection) else _by_statements
        written += write(connection, place, mode, key, batch)
    return written


# --- PostgreSQL -----------------------------------------------------------------------------------


def _by_copy(
    connection: Connection, place: SqlPlace, mode: str, key: Sequence[str], batch: pa.RecordBatch
) -> int:
    from psycopg import sql

    raw: Any = connection.connection.driver_connection
    target = sql.Identifier(*place.table.split("."))
    columns = given = batch.schema.names
    now = was = dict(zip(columns, given, strict=True))
    if mode == "move":  # each column is there twice
        columns = [*key, *key]
        given = [f"c{number}" for number in range(len(columns))]
        now, was = (dict(zip(key, some, strict=False)) for some in (given, given[len(key) :]))
    names = sql.SQL(", ").join(map(sql.Identifier, given))
    with raw.cursor() as cursor:
        into = target
        if mode != "append":
            # A temporary table hides one of the same name, which must not be the target.
            into = sql.Identifier("jet_rows_2" if place.name == "jet_rows" else "jet_rows")
            renamed = sql.SQL(", ").join(
                sql.SQL("{} as {}").format(sql.Identifier(name), sql.Identifier(as_name))
                for name, as_name in zip(columns, given, strict=True)
            )
            cursor.execute(
                sql.SQL(
                    "create temporary table {} on commit drop as select {} from {} limit 0"
                ).format(into, renamed, target)
            )
        copy = sql.SQL("copy {} ({}) from stdin (format csv)").format(into, names)
        with cursor.copy(copy) as writing:
            writing.write(as_csv(batch))
        if mode == "append":
            return int(batch.num_rows)
        others = [name for name in columns if name not in key]
        if mode in ("delete", "update", "move"):
            same = sql.SQL(" and ").join(
                sql.SQL("t.{} = s.{}").format(sql.Identifier(name), sql.Identifier(was[name]))
                for name in key
            )
            changes = sql.SQL(", ").join(
                sql.SQL("{} = s.{}").format(sql.Identifier(name), sql.Identifier(now[name]))
                for name in others or key
            )
            statement = sql.SQL("delete from {} t using {} s where {}").format(target, into, same)
            if mode != "delete":
                statement = sql.SQL("update {} t set {} from {} s where {}").format(
                    target, changes, into, same
                )
        else:
            keys = sql.SQL(", ").join(map(sql.Identifier, key))
            changes = sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others
            )
            action = sql.SQL("update set {}").format(changes) if others else sql.SQL("nothing")
            # As COPY does: a column that is `generated always as identity` takes the rows' values.
            statement = sql.SQL(
                "insert into {} ({}) overriding system value select {} from {} "
                "on conflict ({}) do {}"
            ).format(target, names, names, into, keys, action)
        cursor.execute(statement)
        written: int = cursor.rowcount
        cursor.execute(sql.SQL("drop table {}").format(into))
    return written


def as_csv(batch: pa.RecordBatch) -> bytes:
    """CSV for `COPY ... (FORMAT csv)`: null is empty, an empty text is quoted."""
    columns = [_csv_column(column) for column in batch.columns]
    plain = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    sink = io.BytesIO()
    options = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
    pa_csv.write_csv(plain, sink, options)
    return sink.getvalue()


def _csv_column(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = (None if v is None else f"\\x{v.hex()}" for v in column.to_pylist())
        return pa.array(values, pa.string())
    if pa.types.is_floating(kind):
        # With a double's digits: a float's shorter digits are another number in a wider column.
        return pc.cast(pc.cast(column, pa.float64()), pa.string())
    if pa.types.is_timestamp(kind):
        return _as_times(column)
    if pa.types.is_decimal(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_nested(kind):
        return json_texts(column)
    return column


def _as_times(column: pa.Array) -> pa.Array:
    """Texts of times; in UTC if they have a zone. Arrow's cast of zoned times takes ten times as
    long, because it looks up the zone for each value."""
    texts = pc.cast(column.view(pa.timestamp(column.type.unit)), pa.string())
    return texts if column.type.tz is None else pc.binary_join_element_wise(texts, "Z", "")


# --- other databases ------------------------------------------------------------------------------


def _by_statements(
    connection: Connection, place: SqlPlace, mode: str, key: Sequence[str], batch: pa.RecordBatch
) -> int:
    alchemy = sqlalchemy()
    names = parameters = list(key) if mode == "move" else batch.schema.names
    table = place.clause(*names)
    statement: Any
    if mode == "append":
        statement = table.insert()
    elif mode == "upsert":
        statement = _upsert(connection, table, names, key)
    else:
        # Longer than any column's name: SQLAlchemy sets a column from a parameter of its name.
        length = max(map(len, names))
        parameters = [f"p{number:0{length}}" for number in range(batch.num_columns)]
        values = [alchemy.bindparam(one) for one in parameters]
        now = was = dict(zip(names, values, strict=False))
        if mode == "move":
            was = dict(zip(key, values[len(key) :], strict=True))
        others = [name for name in names if name not in key] or key
        statement = table.delete()
        if mode != "delete":
            statement = table.update().values({name: now[name] for name in others})
        statement = statement.where(*(table.c[name] == was[name] for name in key))
    rows = [dict(zip(parameters, row, strict=True)) for row in _values(connection, batch)]
    # PyMySQL joins the rows of an upsert; older ones leave a name's "%" doubled there.
    at_once = 1 if is_mysql(connection) and any("%" in name for name in names) else _AT_ONCE
    return sum(
        connection.execute(statement, rows[first : first + at_once]).rowcount
        for first in range(0, len(rows), at_once)
    )


def _upsert(connection: Connection, table: Any, names: list[str], key: Sequence[str]) -> Any:
    others = [name for name in names if name not in key] or list(key)
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects import sqlite

        insertion = sqlite.insert(table)
        changes = {name: insertion.excluded[name] for name in others}
        return insertion.on_conflict_do_update(index_elements=list(key), set_=changes)
    from sqlalchemy.dialects import mysql

    alchemy = sqlalchemy()
    # SQLAlchemy's `inserted` doubles "%" of a name twice.
    changes = {name: alchemy.func.values(alchemy.column(name)) for name in others}
    return mysql.insert(table).on_duplicate_key_update(changes)


def _values(connection: Connection, batch: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    """Rows of values as the driver takes them; times in UTC."""
    as_text = connection.dialect.name == "sqlite"
    columns = []
    for column in batch.columns:
        nested = pa.types.is_nested(column.type)
        values = (json_texts(column) if nested else column).to_pylist()
        if pa.types.is_timestamp(column.type):
            values = [_naive(value, as_text) for value in values]
        elif as_text and (pa.types.is_decimal(column.type) or pa.types.is_date(column.type)):
            values = [None if value is None else str(value) for value in values]
        columns.append(values)
    return zip(*columns, strict=True)


def _naive(value: datetime | None, as_text: bool) -> Any:
    if value is None:
        return None
    at = value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)
    return at.isoformat(" ", "microseconds") if as_text else at
