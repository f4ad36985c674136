"""Debezium's changes of a table, in a topic: a mirror of them, killed and restarted; and what no
mirror may take."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.trial import forget
from dagster_jet.errors import BadRowError, ConfigurationError
from dagster_jet.testing import collected
from tests.integration import child
from tests.integration.connectors import debezium_child
from tests.integration.connectors.debezium_table import (
    COLUMNS,
    ChangingTable,
    Message,
    Row,
    produce,
)
from tests.integration.connectors.kafka_world import KafkaWorld
from tests.integration.world import World
from tests.long import long
from tests.servers.postgres import PostgresDatabase, postgres

CONFIG = {**child.CONFIG, "max_items_per_epoch": 25}


class MirrorWorld(World):
    driver = staticmethod(debezium_child.main)
    kafka: KafkaWorld
    database: PostgresDatabase
    table: ChangingTable
    sent: list[Message]

    def set_up(self, partitions: int, transactions: str) -> None:
        self.kafka, self.database, self.sent = KafkaWorld(), postgres(), []
        self.database.run(f"create table m ({COLUMNS})")
        self.table = ChangingTable(random.Random(partitions))
        self.place = {
            "servers": self.kafka.servers,
            "topic": self.kafka.topic(partitions),
            "newest": self.kafka.topic(2, cleanup_policy="compact"),
            "transactions": transactions,
            "url": self.database.url,
        }
        (self.folder / "debezium.json").write_text(json.dumps(self.place))
        environment = self.spark.sparkContext.environment
        os.environ[debezium_child.URL] = environment[debezium_child.URL] = self.database.url

    def change(self, count: int) -> None:
        made = list(self.table.changes(count))
        produce(self.place["servers"], self.place["topic"], made)
        self.sent += made

    def drain(self) -> None:
        with self.jet() as jet:
            p = debezium_child.debezium_pipeline(self.folder)
            jet.run(p, JobConfig(**CONFIG), until="drained")

    def mirrored(self) -> Counter[Row]:
        return Counter(self.database.run("select id, name, large, price, at from m"))

    def newest(self) -> dict[int, list[str | None]]:
        """Newest content of each key's messages; a tombstone has none."""
        found: dict[int, list[str | None]] = {}
        for message in self.kafka.messages(self.place["newest"]):
            value = message.value()
            said = None if value is None else json.dumps(json.loads(value), sort_keys=True)
            found.setdefault(int(message.key()), []).append(said)
        return found

    def newest_wanted(self) -> dict[int, list[str | None]]:
        """Compaction does not look at segments so new."""
        found: dict[int, list[str | None]] = {}
        for key, value in self.sent:
            assert key is not None
            if value is not None:
                row = value["payload"]["after"]
                said = row and json.dumps({"id": row["id"], "name": row["name"]}, sort_keys=True)
                found.setdefault(key["payload"]["id"], []).append(said)
        return found


@pytest.fixture
def world(world: World) -> Iterator[MirrorWorld]:
    found = MirrorWorld(world.folder, world.fail_points, world.spark)
    yield found
    for environment in (os.environ, found.spark.sparkContext.environment):
        environment.pop(debezium_child.URL, None)


@pytest.mark.parametrize(
    ("transactions", "kills"),
    [
        # Written, or produced, in a transaction that nobody will commit.
        ("roll-forward", ["sql.commit.rows:2=kill"]),
        pytest.param(
            "roll-forward",
            ["sql.commit.rows:2=kill", "kafka.commit.produced:2=kill"],
            marks=long,
        ),
        pytest.param("roll-forward", ["kafka.commit.after:2=kill"], marks=long),
        pytest.param("roll-forward", ["sql.commit.after:2=kill"], marks=long),
        pytest.param("roll-forward", ["epoch.acked:2=kill"], marks=long),
        pytest.param("held", ["kafka.held.prepared:2=kill"], marks=long),
        pytest.param("held", ["kafka.held.commit.before:2=kill"], marks=long),
    ],
)
def test_a_killed_mirror_is_the_table(
    world: MirrorWorld, transactions: str, kills: list[str]
) -> None:
    """Reads three partitions, whose offsets are no order: only the changes of one key have one. A
    compacted topic beside the mirror gets every change once, in the order of its key; deletions are
    tombstones."""
    world.set_up(partitions=3, transactions=transactions)
    for rules in kills:
        world.change(60)
        world.run_child(rules, config=CONFIG)
    world.change(60)
    world.drain()
    assert world.mirrored() == world.table.contents()
    assert len(world.table.rows) > 4
    assert world.newest() == world.newest_wanted()
    assert sum(said.count(None) for said in world.newest().values()) > 4


GOLDEN = Path(__file__).parents[2] / "golden" / "debezium.jsonl"
DDL = (
    "id bigint, price decimal(10,2), free decimal(38,20), at timestamp, wall timestamp, "
    "wall3 timestamp, day date, raw binary, ok boolean, real8 double, doc string, "
    "tags array<string>"
)
UTC = timezone.utc
INSERTED = {
    "op": "insert", "id": 30, "price": Decimal("-12345678.90"),
    "free": Decimal("1234567890.12345678901234567890"),
    "at": datetime(2026, 1, 1, 10, 30, 1, 123456, UTC),
    "wall": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "wall3": datetime(2026, 1, 1, 0, 0, 0, 123000, UTC), "day": date(1969, 12, 31),
    "raw": b"\x00\xff\x10", "ok": True, "real8": 0.1, "doc": '{"a": [1]}', "tags": ["a", "b"],
    "_old": None, "_unchanged": [], "_ordered_by": ["id"], "_partition": 1, "_offset": 0,
}  # fmt: skip


def send(kafka: KafkaWorld, topic: str, how: str, table: str, partition: int) -> None:
    """Sends recorded Debezium messages, see `tests/unit/connectors/test_debezium_changes.py`."""
    for one in map(json.loads, GOLDEN.read_text().splitlines()):
        if (one["how"], one["table"]) == (how, table):
            kafka.send(topic, [one["value"]], partition, key=one["key"])


def test_what_debezium_sends_as_rows_and_what_it_never_sends_as_dead_letters(jet: Jet) -> None:
    kafka = KafkaWorld()
    topic = kafka.topic(2)
    send(kafka, topic, "schema", "t", partition=1)
    kafka.send(topic, [{"op": "t"}, None], partition=0, key='{"id": 1}')
    source = sources.kafka(kafka.servers, topics=topic, format="debezium", schema=DDL)
    with pytest.raises(BadRowError) as told:
        jet.run(pipeline(source), JobConfig(**child.CONFIG), until="drained")
    assert f"{topic}/0@0: not a change from Debezium (it truncates the table, and" in str(
        told.value
    )
    forget("good"), forget("bad")
    p = pipeline(source, name="with_letters", letters=True)
    jet.run(p, JobConfig(**child.CONFIG), until="drained")
    rows = sorted(collected("good").to_pylist(), key=lambda row: row["_offset"])
    assert [row["op"] for row in rows] == ["insert", "update", "delete"]
    assert rows[0] == INSERTED
    assert [row["_old"]["id"] for row in rows[1:]] == [30, 30]
    [letter] = collected("bad").to_pylist()
    assert letter["position"] == f"{topic}/0@0" and "it truncates the table" in letter["raw"]


def pipeline(source: Any, name: str = "debezium", *, letters: bool = False) -> Pipeline:
    p = Pipeline(name)
    rows = p.read_from(source, name="changes")
    if letters:
        rows.dead_letter_to(sinks.collect("bad"), name="bad")
    rows.write_to(sinks.collect("good"), name="good")
    return p


def test_in_one_partition_a_truncation_and_any_key_have_an_order(jet: Jet, tmp_path: Path) -> None:
    """Also inside of one epoch. The key of the mirror is not that of the messages."""
    kafka, url = KafkaWorld(), f"sqlite:///{tmp_path}/mirror.db"
    topic = kafka.topic()
    send(kafka, topic, "plain", "f", partition=0)
    row = {"id": 1, "big": "a", "n": 1}
    moved = {"op": "u", "before": row, "after": {**row, "id": 2, "big": "b"}}
    kafka.send(topic, [moved], key='{"n": 1}')
    p = Pipeline("one_partition")
    schema = "id bigint, big string, n int"
    source = sources.kafka(kafka.servers, topics=topic, format="debezium", schema=schema)
    out = sinks.sql(url, table="m", mode="mirror", key="id", create_table=True)
    p.read_from(source, name="changes").write_to(out, name="out")
    jet.run(p, JobConfig(**CONFIG), until="drained")
    with create_engine(url).connect() as connection:
        assert connection.execute(text("select id, big, n from m")).all() == [(2, "b", 1)]


def test_a_compacted_topic_is_read_with_its_tombstones() -> None:
    """A deletion may appear only as a tombstone."""
    kafka = KafkaWorld()

    def start(topic: str, **more: Any) -> None:
        source = sources.kafka(
            kafka.servers, topics=topic, format="debezium", schema="id bigint", **more
        )
        source.at_start("j", "changes", on_one_host=True)

    compacted = kafka.topic(cleanup_policy="compact,delete")
    with pytest.raises(ConfigurationError, match=r"is compacted: .*tombstones=\"pass\""):
        start(compacted)
    start(compacted, tombstones="pass")
    start(kafka.topic())


@pytest.fixture
def jet(world: World) -> Iterator[Jet]:
    with world.jet() as made:
        yield made
