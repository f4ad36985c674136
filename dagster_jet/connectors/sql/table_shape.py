"""Shape of a table from its database: columns, unique indices, and comparison of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.sql.column_fit import Column, Shape
from dagster_jet.connectors.sql.place import (
    SqlPlace,
    is_mysql,
    is_postgres,
    quoted,
    quoted_table,
    sqlalchemy,
)
from dagster_jet.connectors.sql.sqlite_affinity import affinity
from dagster_jet.connectors.sql.unique_indices import unique_indices

if TYPE_CHECKING:
    from sqlalchemy import Connection

_BITS = {"SMALLINT": 16, "INTEGER": 32, "INT": 32, "BIGINT": 64, "TINYINT": 8, "MEDIUMINT": 24}
_LARGE = ("tinytext", "text", "mediumtext", "longtext")
_BYTES = frozenset(("bit", "geometry", "point", "linestring", "polygon", "multipoint",
                    "multilinestring", "multipolygon", "geometrycollection"))  # fmt: skip
_MYSQL = """
select column_name, column_type, data_type, collation_name, character_maximum_length, extra
from information_schema.columns
where table_schema = coalesce(:schema, database()) and table_name = :name
"""
_POSTGRES = """
select a.attname, t.typname, coalesce(c.collisdeterministic, true), a.attgenerated <> '',
       a.attidentity = 'a'
from pg_attribute a join pg_type t on t.oid = a.atttypid
left join pg_collation c on c.oid = a.attcollation
where a.attrelid = to_regclass(:table) and a.attnum > 0 and not a.attisdropped
"""


@dataclass(frozen=True)
class _Details:
    """Properties of a column that SQLAlchemy does not report."""

    word: str
    """Name of the type."""
    declared: str = ""
    """Type as DDL, if known."""
    equates: str = ""
    characters: int | None = None
    bytes: int | None = None
    is_generated: bool = False
    is_always_numbered: bool = False


def shape_of(connection: Connection, place: SqlPlace) -> Shape | None:
    """Returns the table's shape; None if there is no such table."""
    alchemy = sqlalchemy()
    looked = alchemy.inspect(connection)
    try:
        found = looked.get_columns(place.name, schema=place.schema)
    except alchemy.exc.NoSuchTableError:
        return None
    if not found:
        return None
    details = _details(connection, place)
    primary = looked.get_pk_constraint(place.name, schema=place.schema)["constrained_columns"]
    return Shape(
        tuple(_column(one, details.get(one["name"]), primary, connection, place) for one in found),
        unique_indices(connection, place, primary),
        is_strict=connection.dialect.name != "sqlite",
        hits_any_index=is_mysql(connection),
    )


# --- what SQLAlchemy does not report --------------------------------------------------------------


def _details(connection: Connection, place: SqlPlace) -> dict[str, _Details]:
    text = sqlalchemy().text
    if is_mysql(connection):
        asked = {"schema": place.schema, "name": place.name}
        rows = connection.execute(text(_MYSQL), asked).all()
        return {row[0]: _of_mysql(*row[1:]) for row in rows}
    if is_postgres(connection):
        asked = {"table": quoted_table(connection, place)}
        rows = connection.execute(text(_POSTGRES), asked).all()
        return {row[0]: _of_postgres(*row[1:]) for row in rows}
    return {
        row[1]: _Details(row[2].lower(), is_generated=row[6] in (2, 3))
        for row in connection.exec_driver_sql(_pragma(connection, "table_xinfo", place)).all()
    }


def _pragma(connection: Connection, name: str, place: SqlPlace) -> str:
    schema = f"{quoted(connection, place.schema)}." if place.schema else ""
    return f"pragma {schema}{name}({quoted(connection, place.name)})"


def _of_mysql(
    declared: str, word: str, collation: str | None, most: int | None, extra: str
) -> _Details:
    equates = ""
    if collation is not None and not collation.endswith(("_nopad_bin", "_0900_bin")):
        equates = f"its collation {collation} takes texts for equal that differ"
    if word in ("char", "binary"):
        equates = f"{declared} does not keep what stands at the end"
    is_bytes = collation is None or word in _LARGE
    return _Details(
        word,
        declared,
        equates,
        characters=None if is_bytes or word == "enum" else most,
        bytes=most if is_bytes else None,
        is_generated="GENERATED" in extra.upper().replace("DEFAULT_GENERATED", ""),
    )


def _of_postgres(
    word: str, is_deterministic: bool, is_generated: bool, is_always_numbered: bool
) -> _Details:
    equates = ""
    if word == "bpchar":
        equates = "blanks at the end of a char(n) do not count"
    elif word == "citext" or not is_deterministic:
        why = "citext" if word == "citext" else "its collation is not deterministic, which"
        equates = f"{why} takes texts for equal that differ"
    return _Details(
        word, equates=equates, is_generated=is_generated, is_always_numbered=is_always_numbered
    )


# --- columns --------------------------------------------------------------------------------------


def _column(
    found: Mapping[str, Any],
    details: _Details | None,
    primary: list[str],
    connection: Connection,
    place: SqlPlace,
) -> Column:
    kind, more = found["type"], details or _Details("")
    if hasattr(kind, "data_type"):  # PostgreSQL's domains
        kind = kind.data_type
    shown = str(kind.compile(dialect=connection.dialect)) if _has_name(kind) else more.word
    on_sqlite = connection.dialect.name == "sqlite"
    # SQLite fills an integer primary key with the next number, also where it is null.
    numbers_itself = on_sqlite and primary == [found["name"]] and more.word == "integer"
    is_numbered = (
        numbers_itself or bool(found.get("identity")) or found.get("autoincrement") is True
    )
    has_default = found.get("default") is not None
    name, size, scale = _kind(kind, shown, more.word, connection)
    return Column(
        found["name"],
        name,
        shown.lower() or "unknown",
        needs_value=not (found["nullable"] or has_default or is_numbered or more.is_generated),
        size=size,
        scale=scale,
        takes_null=found["nullable"] and not numbers_itself,
        is_generated=more.is_generated,
        is_always_numbered=more.is_always_numbered,
        is_automatic=is_numbered or (found["nullable"] and not has_default),
        is_unsigned=bool(getattr(kind, "unsigned", False)),
        is_bytes=is_mysql(connection) and more.word in _BYTES,
        is_padded=more.word in ("char", "binary", "bpchar") and not on_sqlite,
        characters=more.characters or (None if on_sqlite else _length(kind)),
        bytes=more.bytes,
        equates=more.equates or _equates_on_sqlite(found["name"], connection, place),
        exact=_exact(found, more, connection, place) if more.equates else "",
        affinity=affinity(more.word) if on_sqlite else None,
    )


def _kind(
    kind: Any, shown: str, word: str, connection: Connection
) -> tuple[str, int | None, int | None]:
    """(kind, size, scale) as in `Column`."""
    types, on_sqlite = sqlalchemy().types, connection.dialect.name == "sqlite"
    upper = shown.partition("(")[0].upper().removesuffix(" UNSIGNED")
    if isinstance(kind, types.JSON):
        return "json", None, None
    if isinstance(kind, types.Uuid):
        return "uuid", None, None
    if isinstance(kind, types.Enum):
        return "enum", None, None
    if isinstance(kind, types.ARRAY):
        return "parsed", None, None
    if isinstance(kind, types.Boolean) or (is_mysql(connection) and shown.startswith("TINYINT(1)")):
        return "boolean", None, None
    if isinstance(kind, types.Integer):
        return "integer", None if on_sqlite else _BITS.get(upper.partition(" ")[0]), None
    if isinstance(kind, types.Float):
        single = {"postgresql": "REAL", "mysql": "FLOAT", "mariadb": "FLOAT"}
        size = 32 if upper == single.get(connection.dialect.name) else 64
        return "float", size, getattr(kind, "scale", None)  # MySQL's float(7, 4)
    if isinstance(kind, types.Numeric):
        whole = None if kind.precision is None else kind.precision - (kind.scale or 0)
        return "decimal", whole, kind.scale
    if isinstance(kind, types.LargeBinary | types._Binary):
        return "binary", None, None
    if isinstance(kind, types.DateTime):
        return "timestamp", None, _seconds_digits(kind, connection)
    if isinstance(kind, types.Date):
        return "date", None, None
    if isinstance(kind, types.String) and word not in ("name", "char"):
        return "text", None, None
    if isinstance(kind, types.String) and not is_postgres(connection):
        return "text", None, None
    return "other", None, None  # also PostgreSQL's name and "char", which truncate texts


def _length(kind: Any) -> int | None:
    return getattr(kind, "length", None) if isinstance(kind, sqlalchemy().types.String) else None


def _exact(
    found: Mapping[str, Any], more: _Details, connection: Connection, place: SqlPlace
) -> str:
    """DDL that makes the column compare exactly; empty if unknown."""
    table, name = quoted_table(connection, place), quoted(connection, found["name"])
    null = "" if found["nullable"] else " not null"
    if is_postgres(connection):
        collate = "" if more.word == "bpchar" else ' collate "C"'
        return f"alter table {table} alter column {name} type text{collate}"
    if is_mysql(connection) and more.word not in ("enum", "set"):
        word = more.declared.replace("char", "varchar") if more.word == "char" else more.declared
        if more.word == "binary":
            word = more.declared.replace("binary", "varbinary")
            return f"alter table {table} modify {name} {word}{null}"
        exact = collation_of_keys(connection)
        return (
            f"alter table {table} modify {name} {word} character set utf8mb4 collate {exact}{null}"
        )
    return ""


def collation_of_keys(connection: Connection) -> str:
    """MariaDB's or MySQL's collation under which only identical texts are equal."""
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"


def _equates_on_sqlite(name: str, connection: Connection, place: SqlPlace) -> str:
    """Tests by a query whether the column's COLLATE is exact; only the table's DDL contains it."""
    if connection.dialect.name != "sqlite":
        return ""
    column = quoted(connection, name)
    rows = f"select {column} from {quoted_table(connection, place)} where 0 union all select 'a'"
    tried = f"with tried(v) as ({rows}) select v = 'A' or v = 'a ' from tried"
    if connection.exec_driver_sql(tried).scalar():
        return "its COLLATE takes texts for equal that differ"
    return ""


def _seconds_digits(kind: Any, connection: Connection) -> int | None:
    if is_mysql(connection):
        return getattr(kind, "fsp", None) or 0
    return getattr(kind, "precision", None)  # PostgreSQL's; six digits if unset


def _has_name(kind: Any) -> bool:
    return not isinstance(kind, sqlalchemy().types.NullType)
