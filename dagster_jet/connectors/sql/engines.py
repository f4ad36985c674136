"""MariaDB's storage engines: some have no transactions, so rolled-back rows would stay and a marker
would not cover the rows beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.connectors.sql.place import SqlPlace, is_mysql, sqlalchemy
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_ENGINE = """
select t.engine, e.transactions
from information_schema.tables t
left join information_schema.engines e on e.engine = t.engine
where t.table_schema = coalesce(:schema, database()) and t.table_name = :name
"""


def check_engines(connection: Connection, place: SqlPlace, job: str, stage: str, *own: str) -> None:
    """Checks the table and our own tables beside it; skips views and missing tables.

    Raises:
        ConfigurationError: a table has no transactions; names the statement that changes it.
    """
    if not is_mysql(connection):
        return
    asked = sqlalchemy().text(_ENGINE)
    for name in (place.name, *own):
        found = connection.execute(asked, {"schema": place.schema, "name": name}).one_or_none()
        if found is None or found[0] is None or found[1] == "YES":
            continue
        table = f"{place.schema}.{name}" if place.schema else name
        raise ConfigurationError(
            f"the table {table!r} has the engine {found[0]}, which has no transactions: rows and "
            "markers would not be committed together, and an epoch could be there twice.",
            job=job,
            stage=stage,
            cure=f"alter table {table} engine=InnoDB",
        )
    connection.rollback()
