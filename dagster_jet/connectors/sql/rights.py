"""Checks permissions on a table before rows are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.sql.failures import ErrorKind, error_kind, sentence
from dagster_jet.connectors.sql.markers import Markers
from dagster_jet.connectors.sql.place import SqlPlace, is_postgres, quoted_table, sqlalchemy
from dagster_jet.connectors.sql.table_shape import shape_of
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_NEEDED = {
    "append": ("INSERT",),
    "upsert": ("INSERT", "UPDATE", "SELECT"),
    "delete": ("DELETE", "SELECT"),
    "mirror": ("INSERT", "UPDATE", "DELETE", "SELECT"),
}


def lacking_rights(connection: Connection, place: SqlPlace, mode: str) -> str | None:
    """Missing permissions, as a clause; None if none is missing, or there is no table."""
    alchemy, shape = sqlalchemy(), shape_of(connection, place)
    if shape is None:
        return None
    if is_postgres(connection):
        name = quoted_table(connection, place)
        asked = alchemy.text("select has_table_privilege(:table, :right)")
        lacking = [
            right
            for right in _NEEDED[mode]
            if not connection.execute(asked, {"table": name, "right": right}).scalar()
        ]
        return f"{' and '.join(lacking)} the table {place.table!r}" if lacking else None
    # Elsewhere, try without rows. MariaDB still requires each column without a default.
    needed = [column.name for column in shape.columns if column.needs_value]
    columns = needed or [shape.columns[0].name]
    table, never, column = place.clause(*columns), alchemy.text("1 = 0"), columns[0]
    nothing = alchemy.select(*table.c).where(never)
    tried: dict[str, list[Any]] = {
        "append": [table.insert().from_select(columns, nothing)],
        "upsert": [
            table.insert().from_select(columns, nothing),
            table.update().where(never).values({column: table.c[column]}),
        ],
        "delete": [table.delete().where(never)],
    }
    tried["mirror"] = [*tried["upsert"], *tried["delete"]]
    for statement in tried[mode]:
        try:
            connection.execute(statement)
        except alchemy.exc.DBAPIError as error:
            if error_kind(error) is not ErrorKind.DENIED:
                raise
            return f"write the table {place.table!r}: {sentence(error, place)}"
        finally:
            connection.rollback()
    return None


def create_markers(
    connection: Connection, markers: Markers, job: str, stage: str, *names: str
) -> None:
    """Creates missing marker tables at a start.

    Raises:
        ConfigurationError: creation is not permitted; shows the statements for somebody else.
    """
    try:
        markers.create(connection, *names)
    except sqlalchemy().exc.DBAPIError as error:
        if error_kind(error) is not ErrorKind.DENIED:
            raise
        ddl = "; ".join(" ".join(markers.ddl(connection)[name].split()) for name in names)
        raise ConfigurationError(
            f"this user may not create the table {' and '.join(names)}: "
            f"{sentence(error, markers.place)}.",
            job=job,
            stage=stage,
            cure="Have it created once, with the rights SELECT, INSERT, UPDATE and DELETE for the "
            f"user of the URL: {ddl}",
        ) from None
