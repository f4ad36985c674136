"""A broker and a database of the benchmark's own, and the jars that the peer reads them with.

The servers are started as those of the tests are, but the database syncs what it commits, and notes
when a transaction was committed.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.kafka_race.messages import PARTITIONS
from tests.servers import kafka, launch, own_folder, postgres, stop
from tests.servers.packages import NotInstalledError, fetch_jars
from tests.servers.shared import new_run, stop_all

_AS_IN_USE = {
    "fsync": "on",
    "full_page_writes": "on",
    "track_commit_timestamp": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
}
CONNECTOR, DRIVER = "spark-sql-kafka-0-10_2.13", "42.7.7"
_CONNECTOR_BEFORE = "4.2.0"
"""Version for a PySpark whose own connector is not in the registry."""


@dataclass(frozen=True)
class Broker:
    """Running."""

    kafka: str
    """`host:port`."""

    def topic(self, prefix: str) -> str:
        """A new one."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        admin = self._admin()  # it has to outlive its answer
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
        return name

    def forget(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic])[topic].result()

    def values(self, topic: str) -> list[bytes]:
        """All that is there now, as a plain `read_committed` consumer gets it."""
        consumer = committed_consumer(self.kafka, topic)
        found: list[bytes] = []
        open_ = set(range(PARTITIONS))
        while open_:
            messages = consumer.consume(10_000, 10)
            if not messages:
                raise TimeoutError("the broker is silent")
            for message in messages:
                error = message.error()
                if error is None:
                    found.append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_.discard(message.partition())
                else:
                    raise TimeoutError(error.str())
        consumer.close()
        return found

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.kafka, "log_level": 0})


@dataclass(frozen=True)
class Servers(Broker):
    """Running Kafka broker and PostgreSQL server."""

    database: postgres.PostgresDatabase

    def table(self) -> str:
        name = f"rows_{uuid.uuid4().hex[:8]}"
        self.database.run(f"create table {name} (n bigint, k text, ts bigint, v bigint)")
        return name


def committed_consumer(servers: str, topic: str, **more: Any) -> Consumer:
    """Consumer of all partitions, from their beginning."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 20,
        **more,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    return consumer


@contextlib.contextmanager
def started() -> Iterator[Servers]:
    """Installs and starts both; they end with this process, however it ends.

    Raises:
        NotInstalledError: one of them cannot be installed; says what to install.
    """
    postgres.install()
    with started_broker() as broker:
        place = own_folder("postgres")
        server = launch("postgres", place, postgres.prepared(place, **_AS_IN_USE))
        try:
            yield Servers(broker.kafka, postgres.new_database(server))
        finally:
            stop(server)


@contextlib.contextmanager
def started_broker() -> Iterator[Broker]:
    """Starts a broker as `started` does, without a database."""
    kafka.install()
    run = new_run()
    try:
        place = own_folder("kafka")
        broker = launch("kafka", place, kafka.prepared(place))
        try:
            yield Broker(str(broker.facts["servers"]))
        finally:
            stop(broker)
    finally:
        stop_all(run)


@dataclass(frozen=True)
class PeerJars:
    """The peer's jars: Kafka connector and PostgreSQL driver, with jars that they need and Spark
    does not have."""

    paths: tuple[str, ...]
    connector: str
    """Version of the connector."""


def peer_jars() -> PeerJars:
    """Fetched once, by the Ivy that PySpark ships.

    Raises:
        NotInstalledError: there is no connector that fits.
    """
    import pyspark

    shipped = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    version, connector = _connector((pyspark.__version__, _CONNECTOR_BEFORE))
    driver = fetch_jars(f"postgresql-{DRIVER}", "org.postgresql", "postgresql", DRIVER)
    found = [*connector.glob("*.jar"), *driver.glob("*.jar")]
    # What Spark has in a version of its own stays Spark's.
    chosen = [p for p in found if p.name not in shipped and not p.name.startswith("spark-tags")]
    return PeerJars(tuple(sorted(map(str, chosen))), version)


def _connector(versions: Sequence[str]) -> tuple[str, Path]:
    reason: NotInstalledError | None = None
    for version in versions:
        try:
            folder = f"spark-kafka-{version}"
            return version, fetch_jars(folder, "org.apache.spark", CONNECTOR, version)
        except NotInstalledError as error:
            reason = error
    assert reason is not None
    raise reason
