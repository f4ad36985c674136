"""Expected rows of the topic and of the table: DuckDB over the messages, as multisets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa

from benchmarks.kafka_race.messages import CLOSING_KEY, WINDOW_MS, Messages
from benchmarks.kafka_race.order import Case
from benchmarks.oracle import WrongOutputError
from tests.servers.postgres import PostgresDatabase

_EXPECTED = {
    "window": f"SELECT k, ts - ts % {WINDOW_MS} AS start_ms, count(*)::BIGINT AS n, "
    "sum(v)::BIGINT AS total FROM sent GROUP BY ALL",
    "table": "SELECT n, k, ts, v FROM sent",
}
_WRITTEN = {
    # Both engines write a window's start as a time in UTC, with or without its zone.
    "window": """
        SELECT value->>'k' AS k,
            epoch_ms(replace(value->>'window_start', 'Z', '')::TIMESTAMP) AS start_ms,
            (value->>'n')::BIGINT AS n, (value->>'total')::BIGINT AS total
        FROM (SELECT value::JSON AS value FROM written) WHERE value->>'k' <> $closing
    """,
    "table": "SELECT n, k, ts, v FROM written WHERE k <> $closing",
}


@dataclass(frozen=True)
class Verdict:
    """Rows that must be there, and that are wrong: missing, or there once too often."""

    expected: int
    missing: int
    extra: int


def of_topic(messages: Messages, values: Sequence[bytes]) -> Verdict:
    """Args: values: of the messages that an engine has written."""
    return _compared("window", messages, pa.table({"value": pa.array(values, pa.string())}))


def of_table(messages: Messages, database: PostgresDatabase, table: str, folder: Path) -> Verdict:
    """Reads the table by `COPY`, into a file of the folder."""
    path = folder / f"{table}.csv"
    statement = f"copy {table} (n, k, ts, v) to stdout (format csv)".encode()
    with (
        psycopg.connect(database.url) as connection,
        path.open("wb") as file,
        connection.cursor().copy(statement) as rows,
    ):
        file.writelines(rows)
    with duckdb.connect() as db:
        columns = "{'n': 'BIGINT', 'k': 'VARCHAR', 'ts': 'BIGINT', 'v': 'BIGINT'}"
        read = f"FROM read_csv('{path}', header = false, columns = {columns})"
        written = db.sql(read).to_arrow_table()
    path.unlink()
    return of_rows(messages, written)


def of_rows(messages: Messages, written: pa.Table) -> Verdict:
    """Args: written: n, k, ts, v."""
    return _compared("table", messages, written)


def _compared(case: Case, messages: Messages, written: pa.Table) -> Verdict:
    with duckdb.connect() as db:
        db.register("sent", pa.concat_tables(messages.chunks()))
        db.register("written", written)
        db.execute(f"CREATE TABLE expected AS {_EXPECTED[case]}")
        db.execute(f"CREATE TABLE actual AS {_WRITTEN[case]}", {"closing": CLOSING_KEY})

        def counted(rows: str) -> int:
            return int(db.execute(f"SELECT count(*) FROM ({rows})").fetchall()[0][0])

        return Verdict(
            counted("FROM expected"),
            counted("FROM expected EXCEPT ALL FROM actual"),
            counted("FROM actual EXCEPT ALL FROM expected"),
        )


def demand(verdict: Verdict, who: str) -> None:
    """Raises: WrongOutputError: not all is right, so that a time would say nothing."""
    if verdict.missing or verdict.extra:
        raise WrongOutputError(f"{who}: {verdict}")
