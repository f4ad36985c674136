"""Into Delta Lake tables every row is written once, whenever the driver dies; some starts are
refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.errors import PipelineError
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long, long_but_for
from tests.servers.members import AwsServer
from tests.unit.connectors.delta_rows import by_library, by_log

from . import delta_child
from .crash_table import LAKE_KILLED, Crash
from .oracle import Rows
from .test_s3_files import server as server
from .world import OUTPUTS, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def as_plain(value: Any) -> Any:
    """Row with times in milliseconds, as the oracle has them."""
    if isinstance(value, datetime):
        return round(value.replace(tzinfo=timezone.utc).timestamp() * 1000)
    return value


class TableWorld(World):
    """A world whose outputs are tables of a lake."""

    def assert_nothing_doubled(self) -> None:
        expected, found = self.expected(), self.committed()
        for name, rows in found.items():
            assert not rows - expected[name], (name, rows - expected[name])

    def newest_marker(self, sink: str, owner: Owner) -> int:
        raise NotImplementedError

    def marked(self, sink: str, epochs: set[int]) -> set[int]:
        with self.jet() as jet:
            home = (jet.store.store_id, jet.store.config.namespace)
        marker = self.newest_marker(sink, Owner(*home, self.job, sink))
        return {epoch for epoch in epochs if (1 << 40 | epoch) <= marker}


class DeltaWorld(TableWorld):
    """A world whose outputs are Delta Lake tables."""

    driver = staticmethod(delta_child.main)
    pipeline = staticmethod(delta_child.delta_pipeline)
    read: Callable[[Path], list[dict[str, Any]]] = staticmethod(by_log)

    def table(self, name: str) -> Path:
        return self.folder / "out" / name

    def committed(self) -> dict[str, Rows]:
        found: dict[str, Rows] = {}
        for name, columns in OUTPUTS.items():
            rows = self.read(self.table(name)) if self.table(name).exists() else []
            found[name] = Counter(tuple(as_plain(row[c]) for c in columns) for row in rows)
        return found

    def newest_marker(self, sink: str, owner: Owner) -> int:
        table = deltalake.DeltaTable(self.table(sink.removesuffix("_out")))
        return table.transaction_version(owner.application(repeatable=False)) or 0


@pytest.fixture
def delta_world(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> DeltaWorld:
    return DeltaWorld(tmp_path, fail_points, spark)


@pytest.mark.parametrize("crash", long_but_for(LAKE_KILLED, "F3"), ids=str)
def test_killed(delta_world: DeltaWorld, crash: Crash) -> None:
    delta_world.fill()
    delta_world.run_child(crash.rules, sharded=crash.sharded)
    delta_world.assert_nothing_doubled()
    delta_world.assert_ledger_is_true()
    assert delta_world.run().status is JobStatus.COMPLETED
    outputs = [event.outputs for event in delta_world.events_of(SnapshotCommitted)]
    newest = {sink: facts["table_version"] for one in outputs for sink, facts in one.items()}
    assert newest["counts_out"] == deltalake.DeltaTable(delta_world.table("counts")).version()
    delta_world.assert_exactly_once()
    delta_world.read = by_library_of
    delta_world.assert_exactly_once()


def by_library_of(folder: Path) -> list[dict[str, Any]]:
    return by_library(str(folder))


def test_a_column_that_the_table_lacks_stops_the_start(delta_world: DeltaWorld) -> None:
    delta_world.fill(files=1)
    made = pa.schema([("k", pa.string()), ("v", pa.int64())])
    deltalake.DeltaTable.create(delta_world.table("big"), made, partition_by=["k", "v"])
    with pytest.raises(PipelineError, match=r"'big_out'.*has no column 'ts'"):
        delta_world.run()
    assert not (delta_world.table("counts") / "_delta_log").exists()


class BucketWorld(DeltaWorld):
    """A world with one table, in a bucket."""

    driver = staticmethod(delta_child.main_into_bucket)
    pipeline = staticmethod(delta_child.s3_pipeline)

    def committed(self) -> dict[str, Rows]:
        sink: Any = delta_child.s3_pipeline(self.folder).graph.nodes["counts_out"]
        table = sink.sink
        options = options_of(data_folder(table.url, table.storage_options))
        rows = by_library(table.url, options) if TableLog.open(table.url, options) else []
        columns = OUTPUTS["counts"]
        return {"counts": Counter(tuple(as_plain(row[c]) for c in columns) for row in rows)}

    def expected(self) -> dict[str, Rows]:
        return {"counts": super().expected()["counts"]}


@long  # the tables above are in folders; a job with files in a bucket: test_s3_files.py
@pytest.mark.parametrize("crash", LAKE_KILLED, ids=str)
def test_killed_while_it_writes_into_a_bucket(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, server: AwsServer, crash: Crash
) -> None:
    world = BucketWorld(tmp_path, fail_points, spark)
    world.fill()
    world.run_child(crash.rules, sharded=crash.sharded)
    world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
