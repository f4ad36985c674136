"""Identity of the server, and whether its log contains what was read from another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.postgres.change_rows import lsn_of, lsn_text
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.errors import SourceUnavailableError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_SERVER = (
    "select cast(system_identifier as text), "
    "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) from pg_control_system()"
)


@dataclass(frozen=True)
class Server:
    """Server and timeline; a log position has a meaning only within both."""

    system: str
    """Created with the database cluster; copies of the cluster share it."""
    timeline: int
    """Changes when a standby is promoted or a copy is restored."""


def server_of(connection: Connection, job: str, stage: str) -> Server:
    """Returns the server that answers.

    Raises:
        SourceUnavailableError: it is a standby, or is still being restored.
    """
    if connection.exec_driver_sql("select pg_is_in_recovery()").scalar():
        raise SourceUnavailableError(
            "the server is a standby, or it is being restored.",
            job=job,
            stage=stage,
            cure="Name the primary server in the URL.",
        )
    system, timeline = connection.exec_driver_sql(_SERVER).one()
    return Server(system, int(timeline, 16))


def lacks(place: SqlPlace, now: Server, before: Server, position: int) -> str | None:
    """Returns why the current server's log lacks something that was read, up to `position`, from
    the server before; None if it lacks nothing.

    Raises:
        psycopg.Error: the server does not answer.
    """
    if now.system != before.system:
        return (
            f"this is another server (its system identifier is {now.system}, not {before.system})"
        )
    if now.timeline == before.timeline:
        return None
    begins = _ends_of_timelines(place, now.timeline).get(before.timeline)
    if begins is not None and position <= begins:
        return None
    since = "" if begins is None else f" since {lsn_text(begins)}"
    return (
        "the server was restored, or a standby has taken over: it is on timeline "
        f"{now.timeline}{since}, and its log does not have the changes that were read after that "
        f"on timeline {before.timeline}"
    )


def _ends_of_timelines(place: SqlPlace, timeline: int) -> dict[int, int]:
    """End position of each earlier timeline, from the server's history file."""
    import psycopg

    engine = place.engine()
    arguments: Any = engine.dialect.create_connect_args(engine.url)[1]
    with (
        psycopg.connect(**arguments, replication="database", autocommit=True) as connection,
        psycopg.ClientCursor(connection) as cursor,
    ):
        cursor.execute(f"TIMELINE_HISTORY {timeline}")
        row = cursor.fetchone()
    text = str(row[1]) if row else ""
    lines = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return {int(line[0]): lsn_of(line[1]) for line in lines}
