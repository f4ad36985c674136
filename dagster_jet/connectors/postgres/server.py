"""Which server it is, and whether what was read of another one is in its log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.postgres.rows import lsn_of, lsn_text
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
    """A position in the log means something on this server, on this timeline, only."""

    system: str
    """Made with the database cluster; copies of it have the same."""
    timeline: int
    """Another one after a standby was promoted, or a copy restored."""


def server_of(connection: Connection, job: str, stage: str) -> Server:
    """Who answers.

    Raises:
        SourceUnavailableError: a standby, or a server that is still being restored: not yet.
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
    """Why the log of the server that is there now does not have all that was read of the one
    before, up to a position; None: it has.

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
        f"the server was restored, or a standby has taken over: it has been on timeline "
        f"{now.timeline}{since}, and what was read after that on timeline {before.timeline} "
        "is not in its log"
    )


def _ends_of_timelines(place: SqlPlace, timeline: int) -> dict[int, int]:
    """By earlier timeline, where it was left: the server's history file."""
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
