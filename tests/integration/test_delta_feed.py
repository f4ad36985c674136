"""The change data feed of a Delta Lake table through whole jobs: killed, and into a mirror."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from dagster_jet import JobConfig, sources
from dagster_jet.connectors.delta import DeltaSource
from dagster_jet.testing.check_source import check_source
from tests.long import long
from tests.unit.connectors.delta_rows import by_log

from . import child, feed_child
from .oracle import by_manifest
from .world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
FEED = {"delta.enableChangeDataFeed": "true"}
TEXTS = pa.schema([("id", pa.int64()), ("text", pa.string())])


class FeedWorld(World):
    """A world with one table, and what it did."""

    driver = staticmethod(feed_child.main)

    @property
    def url(self) -> Path:
        return self.folder / "table"

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.url)

    def put(self, *ids: int, mode: Any = "append") -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(ids, pa.int64())})
        deltalake.write_deltalake(self.url, rows, mode=mode)

    def assert_all_is_there(self, first: int) -> None:
        changes = pa.table(self.table.load_cdf(starting_version=first)).to_pylist()
        wanted = Counter(tuple(row[name] for name in feed_child.ROW) for row in changes)
        assert by_manifest(self.folder / "out" / "changes", feed_child.ROW) == wanted
        found = Counter((row["id"], row["v"]) for row in by_log(self.folder / "out" / "mirror"))
        assert found == Counter((row["id"], row["v"]) for row in by_log(self.url))


@pytest.mark.parametrize(
    "rules", ["epoch.acked:3=kill", pytest.param("record.snapshot.after:3=kill", marks=long)]
)
def test_killed(world: World, rules: str) -> None:
    feed = FeedWorld(world.folder, world.fail_points, world.spark)
    deltalake.DeltaTable.create(feed.url, SCHEMA, configuration=FEED)
    feed.put(*range(6))  # a new job reads version 1 whole, as insertions
    config = {"max_items_per_epoch": 2}
    feed.run_child(rules, config=config)
    feed.table.update(updates={"v": "v + 10"}, predicate="id % 2 = 0")
    feed.table.update(updates={"id": "id + 100"}, predicate="id = 1")
    feed.table.optimize.compact()
    feed.table.delete("id = 2")
    feed.put(7, 8)
    feed.put(3, 8, 9, mode="overwrite")
    with feed.jet() as jet:
        asked = JobConfig(**{**child.CONFIG, **config})
        jet.run(feed_child.pipeline(feed.folder), asked, until="completed")
    feed.assert_all_is_there(1)


@long  # each of its epochs is a Spark job
def test_a_feed_keeps_the_contract(tmp_path: Path, spark: SparkSession) -> None:
    url, sent = str(tmp_path / "t"), 0
    deltalake.DeltaTable.create(url, TEXTS, configuration=FEED)

    def send(rows: Sequence[Any]) -> None:
        nonlocal sent
        sent += 1
        found = pa.Table.from_pylist(list(rows), TEXTS)
        if sent % 2:  # with change files, and without
            merge = deltalake.DeltaTable(url).merge(found, "t.id = s.id", "s", "t")
            merge.when_not_matched_insert_all().execute()
        else:
            deltalake.write_deltalake(url, found, mode="append")

    def made() -> DeltaSource:
        feed = sources.delta(url, changes=True)
        return feed.at_start("check_source", "in", on_one_host=True)

    check_source(made, send, spark, many=3_000)
