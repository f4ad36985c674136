"""Tables are maintained while a driver is dead with staged files, and beside the next one."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from dagster_jet.connectors.lake.lake_sink import LakeSink
from dagster_jet.connectors.lake.table_maintenance import TableMaintenance
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long
from tests.servers import duckdb_reader
from tests.unit.connectors.iceberg_rows import by_library as by_pyiceberg
from tests.unit.connectors.iceberg_rows import metadata_at, options_at

from . import polars_reader
from .test_delta import DeltaWorld, TableWorld, by_library_of
from .test_iceberg import IcebergWorld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("counts", "rollup", "big")


class MaintainedDelta(DeltaWorld):
    def keep_nothing(self) -> None:
        kept = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        for name in TABLES:
            deltalake.DeltaTable(self.table(name)).alter.set_table_properties(kept)

    other_readers = (by_library_of, duckdb_reader.delta_rows, polars_reader.delta_rows)


class MaintainedIceberg(IcebergWorld):
    def keep_nothing(self) -> None:
        with closing(load_catalog("lake", **options_at(self.lake))) as catalog:
            for name in TABLES:
                with catalog.load_table(f"crash.{name}").transaction() as change:
                    change.set_properties({"history.expire.max-snapshot-age-ms": "0"})

    other_readers = (
        by_pyiceberg,
        lambda lake, name: duckdb_reader.iceberg_rows(metadata_at(lake, name)),
        lambda lake, name: polars_reader.iceberg_rows(metadata_at(lake, name)),
    )


def maintenance_of(world: TableWorld) -> list[TableMaintenance]:
    with world.jet() as jet:
        nodes = type(world).pipeline(world.folder).graph.sinks
        pairs = [(node.name, node.sink.with_store(jet.store)) for node in nodes]
    return [s.maintenance(world.job, name) for name, s in pairs if isinstance(s, LakeSink)]


@pytest.mark.parametrize("kind", [MaintainedDelta, pytest.param(MaintainedIceberg, marks=long)])
def test_every_row_is_there_once(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, kind: Any
) -> None:
    world = kind(tmp_path, fail_points, spark)
    world.fill(files=4)
    world.run_child("lake.commit.before:3=kill")
    world.keep_nothing()
    maintained, done, calls = maintenance_of(world), threading.Event(), 0
    staged = [int(one.run(0, 1 << 20)["files_staged"]) for one in maintained]
    assert sum(staged) > 0, "the dead driver has left files that are to be committed"

    def maintain() -> None:
        nonlocal calls
        while not done.wait(0.2):
            for one in maintained:
                one.run(0, 1 << 20)
            calls += 1

    beside = threading.Thread(target=maintain)
    beside.start()
    try:
        assert world.run().status is JobStatus.COMPLETED
    finally:
        done.set()
        beside.join()
    assert calls > 0
    world.assert_exactly_once()
    for reader in world.other_readers:
        world.read = reader
        world.assert_exactly_once()
