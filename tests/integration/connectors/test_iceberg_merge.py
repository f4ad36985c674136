"""Upserts and mirrors of an Iceberg table through Spark: the contract, files that are written in
tasks, and a killed driver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_jet.connectors.iceberg import IcebergSink, merge_commit
from dagster_jet.connectors.iceberg.catalog import CatalogPlace
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.failpoints import FailPoints
from tests.integration import iceberg_child, polars_reader
from tests.integration.crash_table import MERGING_KILLED, Crash
from tests.integration.test_iceberg import IcebergWorld
from tests.long import long, long_but_for
from tests.servers import duckdb_reader
from tests.unit.connectors.iceberg_rows import (
    NAME,
    by_library,
    by_manifests,
    metadata_at,
    options_at,
)
from tests.unit.connectors.test_delta_sink import STEPS
from tests.unit.connectors.test_iceberg_sink import (
    an_older_copy,
    made,
    moved_away,
    without_metadata,
)

from .sql_places import as_insertions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Mirror(IcebergSink):
    """Each of the suite's rows is an insertion."""

    def render(self, frame: DataFrame) -> DataFrame:
        return super().render(as_insertions(frame, self.key))


@long  # that of append is not; the tests below and those without Spark merge, too
@pytest.mark.parametrize(("kind", "mode"), [(IcebergSink, "upsert"), (Mirror, "mirror")])
def test_merges_keep_the_contract(
    tmp_path: Path, spark: SparkSession, kind: type[IcebergSink], mode: str
) -> None:
    folder = tmp_path / "a b"
    made(folder, ("flag", "identity"), ("text", "bucket[2]"))
    place = CatalogPlace("lake", tuple(options_at(folder).items()))
    check_sink(
        partial(kind, place, NAME, mode, key=("id",)),
        partial(by_manifests, folder),
        spark=spark,
        log_of=None,
        steps=[*STEPS, "lake.merge.written"],
        outages={"files that are gone": partial(without_metadata, folder)},
        set_back={
            "an empty catalog": partial(moved_away, folder / "catalog.db"),
            "an older copy": partial(an_older_copy, folder),
        },
    )
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(by_library(folder), key=key) == sorted(by_manifests(folder), key=key)


class UpsertWorld(IcebergWorld):
    """A world whose windows are rows with a key."""

    driver = staticmethod(iceberg_child.main_upserting)
    pipeline = staticmethod(iceberg_child.upsert_pipeline)


@pytest.mark.parametrize("crash", long_but_for(MERGING_KILLED, "F9-lake.merge.written"), ids=str)
def test_killed(tmp_path: Path, spark: SparkSession, fail_points: FailPoints, crash: Crash) -> None:
    world = UpsertWorld(tmp_path, fail_points, spark)
    world.fill()
    world.run_child(crash.rules, sharded=crash.sharded)
    world.assert_nothing_doubled()
    world.assert_ledger_is_true()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    for read in (by_library, by_duckdb, by_polars):
        world.read = read
        world.assert_exactly_once()
    assert not list(world.lake.rglob("_dagster_jet/part-*"))


def by_duckdb(lake: Path, name: str) -> list[dict[str, Any]]:
    return duckdb_reader.iceberg_rows(metadata_at(lake, name))


def by_polars(lake: Path, name: str) -> list[dict[str, Any]]:
    return polars_reader.iceberg_rows(metadata_at(lake, name))


def test_files_are_written_in_tasks(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_commit, "_IN_PROCESS_BYTES_MAX", 0)
    called: list[Any] = []
    monkeypatch.setattr(merge_commit, "carry_out_here", lambda pieces: called.extend(pieces) or [])
    world = UpsertWorld(tmp_path, fail_points, spark)
    world.fill()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    assert not called and any(world.lake.rglob("merged-*"))
