"""Creation of a sink's table for its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, sqlalchemy
from dagster_jet.connectors.sql.sqlite_affinity import Affinity, keeps
from dagster_jet.connectors.sql.table_shape import collation_of_keys
from dagster_jet.errors import PipelineError

if TYPE_CHECKING:
    from sqlalchemy import Connection


def created(place: SqlPlace, rows: pa.Schema, key: Sequence[str], connection: Connection) -> Any:
    """Returns the `create table` statement for these rows.

    Raises:
        PipelineError: a name is longer than the database allows.
    """
    alchemy = sqlalchemy()
    most = connection.dialect.max_identifier_length
    for name in (place.name, *rows.names):
        if len(name.encode()) > most:
            raise PipelineError(
                f"the name {name!r} is longer than the {most} bytes that "
                f"{connection.dialect.name} keeps of one.",
                cure="Use a shorter one.",
            )
    table = alchemy.Table(
        place.name,
        alchemy.MetaData(),
        *(
            alchemy.Column(one.name, _type_for(one.type, one.name in key, connection),
                           primary_key=one.name in key, autoincrement=False)
            for one in rows
        ),
        schema=place.schema,
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )  # fmt: skip
    return alchemy.schema.CreateTable(table, if_not_exists=True)


def _type_for(kind: pa.DataType, is_key: bool, connection: Connection) -> Any:
    types, on_mysql = sqlalchemy().types, is_mysql(connection)
    if pa.types.is_boolean(kind):
        return types.Boolean()
    if pa.types.is_integer(kind):
        return types.BigInteger() if kind.bit_width > 32 else types.Integer()
    if pa.types.is_floating(kind):
        return types.Double()
    if pa.types.is_decimal(kind):
        if connection.dialect.name == "sqlite" and not keeps(Affinity.NUMERIC, kind):
            return types.Text()
        return types.Numeric(kind.precision, kind.scale)
    if pa.types.is_date(kind):
        return types.Date()
    if pa.types.is_timestamp(kind):
        if on_mysql:
            from sqlalchemy.dialects import mysql

            return mysql.DATETIME(fsp=6)
        return types.DateTime(timezone=True)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        if is_key and on_mysql:
            return types.VARBINARY(255)
        return types.LargeBinary(2**32 - 1) if on_mysql else types.LargeBinary()
    if is_key and on_mysql:
        return types.String(255, collation=collation_of_keys(connection))
    return types.Text(2**32 - 1) if on_mysql else types.Text()
