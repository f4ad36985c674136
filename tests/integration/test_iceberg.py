"""Into Iceberg tables every row is written once, whenever the driver dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long_but_for
from tests.unit.connectors.iceberg_rows import by_library, by_manifests, metadata_of, options_at

from . import iceberg_child
from .crash_table import LAKE_KILLED, Crash
from .oracle import Rows
from .test_delta import TableWorld, as_plain
from .world import OUTPUTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IcebergWorld(TableWorld):
    """A world whose outputs are tables of one catalog."""

    driver = staticmethod(iceberg_child.main)
    pipeline = staticmethod(iceberg_child.iceberg_pipeline)
    read: Callable[..., list[dict[str, Any]]] = staticmethod(by_manifests)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def committed(self) -> dict[str, Rows]:
        with closing(load_catalog("lake", **options_at(self.lake))) as catalog:
            there = {name for name in OUTPUTS if catalog.table_exists(f"crash.{name}")}
        found: dict[str, Rows] = {}
        for name, columns in OUTPUTS.items():
            rows = self.read(self.lake, f"crash.{name}") if name in there else []
            found[name] = Counter(tuple(as_plain(row[c]) for c in columns) for row in rows)
        return found

    def newest_marker(self, sink: str, owner: Owner) -> int:
        kept = metadata_of(self.lake, f"crash.{sink.removesuffix('_out')}")["properties"]
        return int(kept.get(owner.application(repeatable=False), 0))


@pytest.mark.parametrize("crash", long_but_for(LAKE_KILLED, "F9-lake.commit.after"), ids=str)
def test_killed(tmp_path: Path, spark: SparkSession, fail_points: FailPoints, crash: Crash) -> None:
    world = IcebergWorld(tmp_path, fail_points, spark)
    world.fill()
    world.run_child(crash.rules, sharded=crash.sharded)
    world.assert_nothing_doubled()
    world.assert_ledger_is_true()
    assert world.run().status is JobStatus.COMPLETED
    outputs = [event.outputs for event in world.events_of(SnapshotCommitted)]
    newest = {sink: facts["snapshot_id"] for one in outputs for sink, facts in one.items()}
    head = metadata_of(world.lake, "crash.counts")["current-snapshot-id"]
    assert newest["counts_out"] == str(head)
    world.assert_exactly_once()
    world.read = by_library
    world.assert_exactly_once()


class CopyWorld(IcebergWorld):
    """A world whose job reads one table and writes another."""

    driver = staticmethod(iceberg_child.main_copying)
    pipeline = staticmethod(iceberg_child.copying_pipeline)

    def send(self, *numbers: int) -> None:
        rows = pa.table({"id": pa.array(numbers, pa.int64()), "text": [str(n) for n in numbers]})
        self.lake.mkdir(exist_ok=True)
        with closing(load_catalog("lake", **options_at(self.lake))) as catalog:
            catalog.create_namespace_if_not_exists("crash")
            catalog.create_table_if_not_exists("crash.rows", rows.schema).append(rows)

    def copied(self) -> list[int]:
        return sorted(int(row["id"]) for row in by_manifests(self.lake, "crash.copy"))


@pytest.mark.parametrize(
    "rules",
    long_but_for(
        ["lake.commit.before:2=kill", "lake.commit.after:2=kill", "lake.prepare.after:2=kill"],
        "lake.commit.before",
    ),
)
def test_killed_while_it_reads_a_table(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, rules: str
) -> None:
    world, epochs = CopyWorld(tmp_path, fail_points, spark), {"max_items_per_epoch": 5}
    world.send(*range(7))
    world.send(*range(7, 14))
    world.run_child(rules, until="drained", config=epochs)
    world.send(*range(14, 20))
    world.run("drained", **epochs)
    assert world.copied() == list(range(20))
    tags = metadata_of(world.lake, "crash.rows")["refs"].keys() - {"main"}
    assert [name.rpartition("/")[2] for name in tags] == ["rows"]
