"""Unique indices of a table, and whether an upsert can use them.

An upsert cannot use an index on an expression, on prefixes of texts or on some rows only, nor a
deferrable one of PostgreSQL. And an index may compare texts differently from its column.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.sql.column_fit import UniqueIndex
from dagster_jet.connectors.sql.place import (
    SqlPlace,
    is_mysql,
    is_postgres,
    quoted_table,
    sqlalchemy,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

_POSTGRES = """
select i.indexrelid::regclass::text, a.attname,
       i.indimmediate and i.indisvalid and i.indpred is null and i.indexprs is null,
       coalesce(c.collisdeterministic, true)
from pg_index i
cross join lateral unnest(i.indkey::int[], i.indcollation::oid[]) with ordinality k(attnum, coll, n)
left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
left join pg_collation c on c.oid = k.coll
where i.indrelid = to_regclass(:table) and i.indisunique and k.n <= i.indnkeyatts
"""
_MYSQL = """
select index_name, column_name, sub_part is null and column_name is not null, true
from information_schema.statistics
where table_schema = coalesce(:schema, database()) and table_name = :name and non_unique = 0
"""


def unique_indices(
    connection: Connection, place: SqlPlace, primary: list[str]
) -> tuple[UniqueIndex, ...]:
    """Returns all unique indices; `primary` are the columns of the primary key."""
    text = sqlalchemy().text
    if is_postgres(connection):
        asked = {"table": quoted_table(connection, place)}
        return _indices(connection.execute(text(_POSTGRES), asked).all())
    if is_mysql(connection):
        named = {"schema": place.schema, "name": place.name}
        return _indices(connection.execute(text(_MYSQL), named).all())
    found = _indices(_of_sqlite(connection, place))
    # An integer primary key has no index of its own.
    own = UniqueIndex("primary key", frozenset(primary))
    return found if not primary or own.columns in {one.columns for one in found} else (own, *found)


def _indices(rows: Iterable[Any]) -> tuple[UniqueIndex, ...]:
    """Indices from rows of (index, column or None, is it plain, is it exact), one per column."""
    found: dict[str, UniqueIndex] = {}
    for name, column, is_plain, is_exact in rows:
        before = found.get(name, UniqueIndex(name, frozenset()))
        found[name] = UniqueIndex(
            name,
            before.columns | ({column} if column is not None else set()),
            bool(before.is_plain and is_plain),
            before.equates if is_exact else "texts that differ are equal",
        )
    return tuple(found.values())


def _of_sqlite(connection: Connection, place: SqlPlace) -> list[Any]:
    quote = connection.dialect.identifier_preparer.quote
    schema = f"{quote(place.schema)}." if place.schema else ""

    def pragma(name: str, of: str) -> Any:
        return connection.exec_driver_sql(f"pragma {schema}{name}({quote(of)})").all()

    return [
        (name, column, column is not None and not is_partial, collation.upper() == "BINARY")
        for _, name, is_unique, _, is_partial in pragma("index_list", place.name)
        if is_unique
        for _, _, column, _, collation, is_key in pragma("index_xinfo", name)
        if is_key
    ]
