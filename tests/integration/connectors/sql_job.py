"""The world of `sql_child`: rows in files or a topic, and what is found in two tables."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from dagster_jet import JobConfig, JobResult
from tests.integration import child
from tests.integration.connectors import sql_child
from tests.integration.connectors.kafka_world import KafkaWorld
from tests.integration.connectors.plain_markers import TableMarkers
from tests.integration.oracle import input_rows, windowed
from tests.integration.world import World
from tests.servers.postgres import PostgresDatabase


class SqlWorld(World):
    driver = staticmethod(sql_child.main)
    job = sql_child.JOB
    database: PostgresDatabase
    place: dict[str, str]
    transactions = "roll-forward"

    def use(self, database: PostgresDatabase, port: int | None = None) -> None:
        self.database = database
        url = database.through(port or database.port)
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
        return Counter(self.database.run("select k, ts, v from rows"))

    def counts(self) -> Counter[tuple[Any, ...]]:
        return Counter(
            self.database.run(
                "select k, (extract(epoch from window_start) * 1000)::bigint, "
                "(extract(epoch from window_end) * 1000)::bigint, n, total from counts"
            )
        )

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


def new_tables(database: PostgresDatabase) -> PostgresDatabase:
    database.run("create table rows (k text, ts bigint, v bigint)")
    database.run(
        "create table counts (k text, window_start timestamptz, window_end timestamptz, n bigint, "
        "total bigint, primary key (k, window_start))"
    )
    return database
