"""MariaDB's tables have engines, and some of these have no transactions: rows stay that were rolled
back, and a marker says nothing of the rows beside it."""

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
    """Of the table, and of our own ones beside it; what is no table, or is not there, has none.

    Raises:
        ConfigurationError: one of them has no transactions; says what changes that.
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
