"""Rows are enriched with tables of a lake: an epoch that is repeated finds the first version."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dagster_jet import JobConfig, tables
from dagster_jet.errors import BadRowError
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.pipeline.graph import EnrichNode
from dagster_jet.spark.tables import EnrichmentTables
from tests.unit.connectors.iceberg_table import Table as IcebergTable

from . import child, enriched_child
from .oracle import Rows, by_manifest, input_rows
from .world import World

COLUMNS = ("k", "ts", "v", "of_delta", "of_iceberg")


def values(name: str, value: int, keys: int = 5) -> pa.Table:
    column = pa.array([value] * keys, pa.int64())
    return pa.table({"k": [f"key-{n}" for n in range(keys)], name: column})


class EnrichedWorld(World):
    """A world whose rows are enriched with two tables; all their rows have one number."""

    driver = staticmethod(enriched_child.main)

    def write_tables(self, value: int) -> None:
        url = self.folder / "table"
        deltalake.write_deltalake(url, values("of_delta", value), mode="overwrite")
        with self.iceberg.opened() as table:
            # The library warns of a table without rows to overwrite.
            change = table.overwrite if table.current_snapshot() else table.append
            change(values("of_iceberg", value))

    def create(self) -> EnrichedWorld:
        self.iceberg = IcebergTable(self.folder, values("of_iceberg", 0).schema)
        self.write_tables(1)
        return self

    def rows(self, sink: str) -> Rows:
        return by_manifest(self.folder / "out" / sink, COLUMNS)

    def wanted(self, files: slice, value: int) -> Rows:
        folder = self.folder / "in" / "left"
        rows = input_rows(folder)[files]
        return Counter((r["k"], r["ts"], r["v"], value, value) for r in rows)

    def go_on(self, until: str) -> None:
        with self.jet() as jet:
            pipeline, config = enriched_child.pipeline(self.folder), JobConfig(**child.CONFIG)
            jet.run(pipeline, config, until=until, on_event=self.see)


def test_an_epoch_that_is_repeated_finds_the_same_rows(world: World) -> None:
    here = EnrichedWorld(world.folder, world.fail_points, world.spark).create()
    with here.iceberg.opened() as table:
        snapshot = table.metadata.current_snapshot_id
    here.fill()
    # The second epoch's rows are in the sink that is at-least-once, and in no snapshot.
    here.run_child("manifest.before:3=kill")
    shown = here.rows("often")
    assert shown - here.rows("once")
    here.write_tables(2)
    here.go_on("drained")
    wanted = here.wanted(slice(None), 1)
    assert here.rows("once") == wanted
    often = here.rows("often")
    assert often.keys() == wanted.keys() and often.total() > wanted.total()
    with here.jet() as jet:
        ended = jet.job(child.JOB)
        notes = ended.manifest(ended.snapshots()[0].snapshot_id).tables
    assert {n: (note["version"].get("version"), note["kept"]) for n, note in notes.items()} == {
        "delta": (0, False),
        "iceberg": (None, False),
    }
    assert notes["iceberg"]["version"]["snapshot"] == snapshot
    assert here.events_of(SnapshotCommitted)[-1].tables.keys() == notes.keys()
    # That execution has ended in order: the next one reads the newest versions.
    here.fill(1, first=5)
    here.go_on("completed")
    assert here.rows("once") == wanted + here.wanted(slice(5 * 12, None), 2)


class Enriching:
    """The tables of one execution, with one Delta Lake table."""

    def __init__(self, folder: Path, spark: SparkSession, **pinned: Any) -> None:
        self.url, self.spark = str(folder / "t"), spark
        table = tables.delta(self.url, **pinned).at_start("j", "look", on_one_host=True)
        self.node = EnrichNode("look", ("in",), table, ("k",), "left", refresh_ms=0)
        self.tables = EnrichmentTables(spark, "j", AssertionError)

    def now(self) -> set[int]:
        return {row["n"] for row in self.tables.frame(self.node, ["k"]).collect()}


def write(folder: Path, value: int, keys: int = 5) -> None:
    deltalake.write_deltalake(folder / "t", values("n", value, keys), mode="overwrite")


def test_a_newer_version_is_used_once_a_snapshot_notes_it(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1)
    first = Enriching(tmp_path, spark)
    assert first.now() == {1}
    write(tmp_path, 2)
    assert first.now() == {1}, "no snapshot notes the new version yet"
    before = {"look": first.tables.noted(is_last=True)["look"] | {"kept": True}}
    noted = first.tables.noted(is_last=False)
    assert first.now() == {2} and noted["look"]["version"] != before["look"]["version"]
    reads = first.tables.reads
    assert first.tables.noted(is_last=False) == noted
    assert first.tables.reads == reads, "a table that has not changed is not read again"

    def restored(note: dict[str, Any], **pinned: Any) -> set[int]:
        again = Enriching(tmp_path, spark, **pinned)
        again.now()
        again.tables.restore(note)
        return again.now()

    write(tmp_path, 3)
    assert restored(noted) == {2} and restored(before) == {1} and restored({}) == {3}
    assert restored(first.tables.noted(is_last=True)) == {3}
    assert restored(before, version=2) == {3}, "the pipeline names another version now"
    deltalake.DeltaTable(tmp_path / "t").vacuum(0, False, False)
    with caplog.at_level(logging.WARNING):
        assert restored(before) == {3}
    assert "does not have the version" in caplog.text
    deltalake.write_deltalake(tmp_path / "u", values("n", 7))
    (tmp_path / "t").rename(tmp_path / "away")
    (tmp_path / "u").rename(tmp_path / "t")
    assert restored(
        {"look": noted["look"] | {"version": {**noted["look"]["version"], "version": 0}}}
    ) == {7}


def test_a_version_that_cannot_be_read_is_not_noted(tmp_path: Path, spark: SparkSession) -> None:
    write(tmp_path, 1)
    enriching = Enriching(tmp_path, spark)
    enriching.now()
    deltalake.write_deltalake(tmp_path / "t", values("n", 2), mode="append")
    with pytest.raises(BadRowError, match="2 rows of the table have the key"):
        enriching.tables.noted(is_last=False)
