"""The order of rows, through a job of twelve tasks: what is read first is written first."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.files.part_tasks import divided
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.kafka import ranges
from dagster_jet.connectors.row_order import newest_per_key
from dagster_jet.connectors.trial import forget
from dagster_jet.execution import epoch_driver
from dagster_jet.spark.plans.repeatable import repeat
from dagster_jet.testing import collected
from tests.long import long

from .. import child
from ..world import World
from .kafka_job import KafkaPipelineWorld
from .kafka_world import KafkaWorld

TASKS, ROWS, KEYS = 12, 3_600, 100


@pytest.fixture(scope="module")
def kafka() -> KafkaWorld:
    return KafkaWorld()


@pytest.fixture
def many_tasks(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every epoch has `TASKS` tasks, as one of many rows on a large machine has."""
    monkeypatch.setattr(ranges, "ROWS_PER_TASK", 1)
    monkeypatch.setattr(epoch_driver, "SPARED_ROWS", 0)
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.default.parallelism", str(TASKS))
    assert spark.sparkContext.defaultParallelism == TASKS
    yield
    conf.remove("spark.default.parallelism")


@pytest.fixture
def jet(tmp_path: Path, many_tasks: None) -> Iterator[Jet]:
    with Jet(
        store=[f"file://{tmp_path}/store"],
        backup_count=0,
        work_dir=tmp_path / "work",
        show_progress=False,
    ) as jet:
        yield jet


def rows() -> list[dict[str, Any]]:
    return [{"k": f"k{n * 7919 % KEYS}", "v": n} for n in range(ROWS)]


def run(jet: Jet, kafka: KafkaWorld, **sinks: Any) -> None:
    """Reads them from a topic of one partition, in one epoch."""
    given = kafka.topic()
    kafka.send(given, rows())
    p = Pipeline("mirror")
    source = sources.kafka(kafka.servers, topics=[given], schema="k string, v long")
    read = p.read_from(source, name="rows")
    kept = read.filter("v >= 0")
    for name, sink in sinks.items():
        kept.write_to(sink, name=name)
    jet.run(p, JobConfig(max_items_per_epoch=ROWS))


def found(kafka: KafkaWorld, topic: str) -> list[dict[str, Any]]:
    """Partition by partition, each in its order."""
    messages = sorted(kafka.messages(topic), key=lambda m: (m.partition(), m.offset()))
    return [json.loads(message.value()) for message in messages]


def by_key(rows: Iterable[dict[str, Any]]) -> dict[str, list[int]]:
    of_key: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        of_key[row["k"]].append(row["v"])
    return dict(of_key)


def held(kafka: KafkaWorld, topic: str, **more: Any) -> Any:
    markers = f"m-{uuid.uuid4().hex[:12]}"
    return sinks.kafka(
        kafka.servers, topic=topic, transactions="held", writers=3, marker_topic=markers, **more
    )


def test_rows_of_one_partition_keep_their_order(
    jet: Jet, kafka: KafkaWorld, tmp_path: Path
) -> None:
    """A topic, a table by its rowid, files by their names, what is collected."""
    forget("order")
    topic, table, files = kafka.topic(), tmp_path / "a.db", tmp_path / "files"
    with closing(sqlite3.connect(table)) as database:
        database.execute("create table results (k text, v integer)")
    run(
        jet,
        kafka,
        topic=sinks.kafka(kafka.servers, topic=topic, key="k"),
        table=sinks.sql(f"sqlite:///{table}", table="results"),
        files=sinks.files(str(files), format="json"),
        memory=sinks.collect("order"),
    )
    wanted = [row["v"] for row in rows()]
    assert [row["v"] for row in found(kafka, topic)] == wanted
    with closing(sqlite3.connect(table)) as database:
        assert [v for (v,) in database.execute("select v from results order by rowid")] == wanted
    parts = sorted(files.glob("part-*"))
    assert len(parts) == TASKS
    assert [json.loads(line)["v"] for part in parts for line in part.open()] == wanted
    assert collected("order")["v"].to_pylist() == wanted


def test_the_last_row_of_a_key_is_the_one_that_stays(
    jet: Jet, kafka: KafkaWorld, tmp_path: Path
) -> None:
    table = tmp_path / "a.db"
    with closing(sqlite3.connect(table)) as database:
        database.execute("create table results (k text primary key, v integer)")
    run(
        jet,
        kafka,
        table=sinks.sql(f"sqlite:///{table}", table="results", mode="upsert", key="k"),
        map=sinks.map_entries("newest", key="k", value="v"),
    )
    wanted = {key: values[-1] for key, values in by_key(rows()).items()}
    with closing(sqlite3.connect(table)) as database:
        assert dict(database.execute("select k, v from results")) == wanted
    assert dict(jet.map("newest").items()) == wanted


def test_held_transactions_keep_the_order_of_each_key(jet: Jet, kafka: KafkaWorld) -> None:
    topic = kafka.topic(2)
    run(jet, kafka, out=held(kafka, topic, key="k"))
    assert by_key(found(kafka, topic)) == by_key(rows())


@long
def test_held_transactions_keep_the_order_of_the_only_partition(
    jet: Jet, kafka: KafkaWorld
) -> None:
    topic = kafka.topic()
    run(jet, kafka, out=held(kafka, topic, key="k"))
    assert found(kafka, topic) == rows()


@pytest.mark.usefixtures("many_tasks")
def test_a_job_that_is_killed_keeps_the_order(world: World, kafka: KafkaWorld) -> None:
    """Twelve shards and tasks; the driver dies when an epoch is decided and not committed."""
    made = KafkaPipelineWorld(world.folder, world.fail_points, world.spark)
    made.set_up(kafka)
    config = {**child.CONFIG, "parallelism": TASKS, "max_items_per_epoch": 24}
    made.send(6)
    made.run_child("record.snapshot.after:2=kill", config=config, many_tasks=True)
    made.run(parallelism=TASKS, max_items_per_epoch=24)
    made.assert_exactly_once()
    made.assert_in_order()


def test_to_keep_the_last_row_of_a_key_is_still_a_frame_that_runs_again(spark: Any) -> None:
    """Rows are numbered anew in each run: small epochs of an upsert share their frames."""
    rows = spark.range(0, 9, 1, 1).mapInArrow(lambda batches: batches, "id long")
    newest = newest_per_key(rows.selectExpr("id % 3 as k", "id as v"), ["k"])
    assert repeat(newest, several_readers=False)
    assert sorted(map(tuple, newest.collect())) == [(0, 6), (1, 7), (2, 8)]
    assert not repeat(rows.selectExpr("id", "rand() as r"), several_readers=False)


def test_slices_of_a_file_are_dealt_in_its_order() -> None:
    file = InputFile(0, "/in/a.json", 1 << 30)
    shares = divided([Slice.whole(file)], "json", parallelism=1)
    begins = [part.begin for share in shares.each for part in share]
    assert len(begins) == 16 and begins == sorted(begins)
