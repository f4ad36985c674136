"""The world of `sql_child`: rows in files or a topic, and what is found in two tables."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dagster_jet import JobConfig, JobResult
from tests.integration import child
from tests.integration.connectors import sql_child
from tests.integration.connectors.kafka_world import KafkaWorld
from tests.integration.connectors.plain_markers import TableMarkers
from tests.integration.oracle import input_rows, windowed
from tests.integration.world import World
from tests.servers.mariadb import MariaDatabase


@dataclass(frozen=True)
class SqliteDatabase:
    path: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as database, database:
            return database.execute(statement).fetchall()


class SqlWorld(World):
    driver = staticmethod(sql_child.main)
    job = sql_child.JOB
    database: Any
    place: dict[str, str]
    transactions = "roll-forward"

    def use(self, database: Any, port: int | None = None) -> None:
        self.database = database
        url = database.through(port) if port else database.url
        (self.folder / "url").write_text(url)
        os.environ[sql_child.URL] = self.spark.sparkContext.environment[sql_child.URL] = url

    def read_from(self, kafka: KafkaWorld) -> None:
        """The job reads from a topic what it would read from files."""
        self.place = {"servers": kafka.servers, "in": kafka.topic()}
        (self.folder / "kafka.json").write_text(json.dumps(self.place))

    def send(self, files: int, first: int = 0) -> None:
        self.fill(files=files, first=first)
        for number in range(first, first + files):
            lines = (self.folder / "in" / "left" / f"{number:05d}.json").read_bytes().splitlines()
            KafkaWorld(self.place["servers"]).send(self.place["in"], lines, partition=0)

    def run(self, until: str = "completed", **config: Any) -> JobResult:
        with self.jet() as jet:
            return jet.run(
                sql_child.sql_pipeline(self.folder, self.transactions),
                JobConfig(**{**child.CONFIG, **config}),
                until=until,
                on_event=self.see,
            )

    def rows(self) -> Counter[tuple[Any, ...]]:
        name = "`rows`" if isinstance(self.database, MariaDatabase) else "rows"
        return Counter(self.database.run(f"select k, ts, v from {name}"))

    def counts(self) -> Counter[tuple[Any, ...]]:
        found = self.database.run("select k, window_start, window_end, n, total from counts")
        return Counter((k, _ms(start), _ms(end), n, total) for k, start, end, n, total in found)

    def marked(self, sink: str, epochs: set[int]) -> set[int]:
        newest = TableMarkers(self.database.url, sink)()
        return {epoch for epoch in epochs if epoch <= newest}

    def assert_exactly_once(self) -> None:
        rows = list(input_rows(self.folder / "in" / "left"))
        assert self.rows() == Counter((r["k"], r["ts"], r["v"]) for r in rows)
        assert self.counts() == Counter(windowed(rows, child.WINDOW_MS))

    def assert_nothing_doubled(self) -> None:
        rows = input_rows(self.folder / "in" / "left")
        assert not self.rows() - Counter((r["k"], r["ts"], r["v"]) for r in rows)


def _ms(time: Any) -> int:
    """Converts a plain client's time to milliseconds: a time without a zone is UTC; SQLite's is
    text."""
    at = datetime.fromisoformat(time) if isinstance(time, str) else time
    at = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at
    return round(at.timestamp() * 1000)


def new_tables(database: Any) -> Any:
    on_mariadb = isinstance(database, MariaDatabase)
    name, time = ("`rows`", "datetime(6)") if on_mariadb else ("rows", "timestamptz")
    exact = " character set utf8mb4 collate utf8mb4_nopad_bin" if on_mariadb else ""
    database.run(f"create table {name} (k varchar(50), ts bigint, v bigint)")
    database.run(
        f"create table counts (k varchar(50){exact}, "
        f"window_start {time}, window_end {time}, n bigint, "
        "total bigint, primary key (k, window_start))"
    )
    return database
