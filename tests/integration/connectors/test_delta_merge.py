"""Upserts and mirrors of a Delta Lake table through Spark: the contract, and a killed driver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from dagster_jet.connectors.delta import DeltaSink
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.failpoints import FailPoints
from dagster_jet.testing.sink_rows import SCHEMA
from tests.integration import delta_child, polars_reader
from tests.integration.crash_table import Crash
from tests.integration.test_delta import DeltaWorld
from tests.long import long
from tests.servers import duckdb_reader
from tests.unit.connectors.delta_rows import by_log
from tests.unit.connectors.test_delta_sink import STEPS, an_older_copy, without_a_log

from .sql_places import as_insertions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Mirror(DeltaSink):
    """Each of the suite's rows is an insertion."""

    def render(self, frame: DataFrame) -> DataFrame:
        return super().render(as_insertions(frame, self.key))


@long  # that of append is not; the tests below and those without Spark merge, too
@pytest.mark.parametrize(("kind", "mode"), [(DeltaSink, "upsert"), (Mirror, "mirror")])
def test_merges_keep_the_contract(
    tmp_path: Path, spark: SparkSession, kind: type[DeltaSink], mode: str
) -> None:
    folder = tmp_path / "table"
    deltalake.DeltaTable.create(folder, SCHEMA, partition_by=["flag"])
    check_sink(
        partial(kind, str(folder), mode, ("id",)),
        partial(by_log, folder),
        spark=spark,
        log_of=None,
        outages={"a log that cannot be read": partial(without_a_log, folder)},
        steps=STEPS,
        set_back={"an older copy": partial(an_older_copy, folder)},
    )


def test_a_refused_row_does_not_stand_for_its_key(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "table"
    deltalake.DeltaTable.create(folder, SCHEMA)
    sink: Any = DeltaSink(str(folder), "upsert", ("day",), "number").with_dead_letters()
    sink = sink.at_start("j", "out", on_one_host=True)
    frame = spark.sql(
        "SELECT * FROM VALUES (1L, 'a', 1D), (NULL, 'b', 3D), (2L, 'c', 2D) AS t(id, text, number)"
    ).selectExpr("*", "DATE'2026-01-01' AS day")
    rendered = sink.render(frame).toArrow()
    refused = [n for batch in rendered.to_batches() for n in sink.refused(batch).values()]
    assert len(refused) == 1 and '"text":"b"' in refused[0].raw.replace(" ", "")
    kept = [row["text"] for row in rendered.to_pylist() if row["id"] is not None]
    assert kept == ["c"]


class UpsertWorld(DeltaWorld):
    """A world whose windows are rows with a key."""

    driver = staticmethod(delta_child.main_upserting)
    pipeline = staticmethod(delta_child.upsert_pipeline)


@long  # that of Iceberg is not
def test_killed(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> None:
    world, crash = (
        UpsertWorld(tmp_path, fail_points, spark),
        Crash("F9", "lake.commit.after:2=kill"),
    )
    world.fill()
    world.run_child(crash.rules, sharded=crash.sharded)
    world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    for read in (duckdb_reader.delta_rows, polars_reader.delta_rows):
        world.read = read
        world.assert_exactly_once()
    assert not list(world.folder.glob("out/*/_dagster_jet/part-*"))
