"""Structs that are null, with fields that Spark declares without nulls, as literals make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from dagster_jet import JobConfig, Pipeline, Stage, sinks, sources
from dagster_jet import aggregates as agg
from dagster_jet.testing.failpoints import FailPoints
from tests.unit.connectors import delta_rows, iceberg_rows

from .world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THERE = {"kind": "third", "inner": {"n": 1}, "list": [{"n": 2}]}


def marked(rows: DataFrame) -> DataFrame:
    struct = "named_struct('kind', 'third', 'inner', struct(1 AS n), 'list', array(struct(2 AS n)))"
    return rows.selectExpr("id", f"CASE WHEN id % 3 = 0 THEN {struct} END AS s")


def passed_on(rows: Stage) -> Stage:
    return rows


def through_state(rows: Stage) -> Stage:
    return rows.group_by("id").rolling_aggregate(s=agg.max_by("s", "id"), name="newest")


def check(folder: Path, world: World, shaped: Callable[[Stage], Stage]) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "lake").mkdir()
    p = Pipeline("structs")
    read = p.read_from(sources.files(f"{folder}/in", format="json", schema="id long"), name="rows")
    out = shaped(read.transform(marked, name="marked"))
    out.write_to(sinks.files(f"{folder}/files", format="parquet"), name="files_out")
    out.write_to(sinks.delta(f"{folder}/delta"), name="delta_out")
    upserted = sinks.delta(f"{folder}/upserted", mode="upsert", key=["id"])
    out.write_to(upserted, name="upserted_out")
    place: Any = iceberg_rows.options_at(folder / "lake")
    table = sinks.iceberg("lake", "space.rows", catalog_options=place)
    out.write_to(table, name="iceberg_out")
    with world.jet() as jet:
        for begin in (0, 7):  # the second run restores state at another parallelism
            texts = (json.dumps({"id": n}) for n in range(begin, begin + 7))
            (folder / "in" / f"{begin}.json").write_text("\n".join(texts) + "\n")
            jet.run(p, JobConfig(parallelism=2 + begin), until="drained")
    expected = [{"id": n, "s": None if n % 3 else THERE} for n in range(14)]
    files = (pq.ParquetFile(path).read() for path in (folder / "files").glob("*.parquet"))
    written = {
        "files": [row for rows in files for row in rows.to_pylist()],
        "delta": delta_rows.by_library(str(folder / "delta")),
        "upserted": delta_rows.by_library(str(folder / "upserted")),
        "iceberg": iceberg_rows.by_library(folder / "lake"),
    }
    for sink, found in written.items():
        assert sorted(found, key=lambda row: row["id"]) == expected, sink


def test_as_they_are(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> None:
    check(tmp_path, World(tmp_path, fail_points, spark), passed_on)


def test_through_state(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> None:
    check(tmp_path, World(tmp_path, fail_points, spark), through_state)
