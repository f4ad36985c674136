"""Kafka and PostgreSQL for `make demo KAFKA=1`: installed, started, and ended with the demo.

They are the ones of the tests (`tests/servers`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.replay import Replayer
from pipelines.airport_delays.through_kafka import BADLY_DELAYED, HOURLY, TOPIC
from tests.servers import kafka, postgres
from tests.servers.packages import NotInstalledError
from tests.servers.shared import new_run, stop_all

PARTITIONS = 3


class ServersError(Exception):
    """A server cannot be had; the message says what to install."""


@dataclass(frozen=True)
class Servers:
    """A broker with the topic of the flights, and an empty database."""

    broker: str
    database: postgres.PostgresDatabase

    def environment(self) -> dict[str, str]:
        """What the code location reads."""
        return {"JET_KAFKA": self.broker, "JET_DATABASE_URL": self.database.url}

    def replayer(self, paths: Sequence[Path], sent: Path, duration_seconds: float) -> Replayer:
        sent.mkdir(parents=True, exist_ok=True)
        return _KafkaReplayer(paths, sent, duration_seconds, self.broker)

    def write_tables(self, folder: Path) -> None:
        """As CSV files, by PostgreSQL's own COPY."""
        import psycopg

        folder.mkdir(parents=True, exist_ok=True)
        with psycopg.connect(self.database.url) as connection:
            for table in (HOURLY, BADLY_DELAYED):
                statement = f"copy {table} to stdout (format csv, header)".encode()
                with (
                    (folder / f"{table}.csv").open("wb") as file,
                    connection.cursor().copy(statement) as rows,
                ):
                    file.writelines(rows)

    def write_messages(self, path: Path) -> None:
        """Position and text of all that is in the topic, read by a plain consumer."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.broker, "group.id": "the demo's oracle"})
        starts = [TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(one, timeout=10)[1] for one in starts)
        consumer.assign(starts)
        until = time.monotonic() + 60
        with path.open("w", encoding="utf-8") as file:
            while left and time.monotonic() < until:
                for message in consumer.consume(10_000, timeout=1):
                    position = f"{TOPIC}/{message.partition()}@{message.offset()}"
                    content = {"position": position, "line": message.value().decode()}
                    file.write(json.dumps(content) + "\n")
                    left -= 1
        consumer.close()


class _KafkaReplayer(Replayer):
    """Sends the lines of a file in place of moving it into the inbox: one line to each partition in
    turn, so that each has all of time."""

    def __init__(
        self, paths: Sequence[Path], sent: Path, duration_seconds: float, broker: str
    ) -> None:
        from confluent_kafka import Producer

        super().__init__(paths, sent, duration_seconds)
        self._producer = Producer(
            {
                "bootstrap.servers": broker,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,  # what it tells of is retried, or an error
            }
        )

    def publish(self, path: Path) -> None:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            self._producer.produce(TOPIC, line.encode(), partition=number % PARTITIONS)
        while self._producer.flush(1):
            pass
        super().publish(path)


@contextmanager
def started_servers() -> Iterator[Servers]:
    """Both, until it is left, however the demo ends.

    Raises:
        ServersError: one of them cannot be installed, or does not start.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    try:
        kafka.install()
        postgres.install()
    except NotInstalledError as error:
        raise ServersError(str(error).replace("The tests need", "The demo needs")) from None
    run = new_run()
    try:
        try:
            servers = Servers(kafka.kafka(), postgres.postgres())
            admin = AdminClient({"bootstrap.servers": servers.broker, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        except RuntimeError as error:
            raise ServersError(str(error)) from None
        yield servers
    finally:
        stop_all(run)
        del os.environ["JET_TEST_SERVERS"], os.environ["JET_TEST_CONTROLLER"]
