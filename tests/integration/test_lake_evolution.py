"""A job that goes on with one more column: its tables get it, and the rows that are there have a
null."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.testing.failpoints import FailPoints
from tests.unit.connectors import delta_rows, iceberg_rows

from .world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copying(folder: Path, *columns: str) -> Pipeline:
    p, word = Pipeline("growing"), "extend"
    rows = sources.files(f"{folder}/in/left", format="json", schema="k string, ts long, v long")
    read = p.read_from(rows, name="rows").select(*columns)
    to: Any = {"schema_evolution": word}
    read.write_to(sinks.delta(f"{folder}/delta", **to), name="delta_out")
    place: Any = iceberg_rows.options_at(folder / "lake")
    table = sinks.iceberg("lake", "space.rows", catalog_options=place, **to)
    read.write_to(table, name="iceberg_out")
    return p


def test_a_job_goes_on_with_a_new_column(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints
) -> None:
    world = World(tmp_path, fail_points, spark)
    (tmp_path / "lake").mkdir()
    world.fill(2)
    with world.jet() as jet:
        jet.run(copying(tmp_path, "k", "v"), JobConfig(parallelism=2), until="drained")
        readers: list[Callable[[], list[dict[str, Any]]]] = [
            lambda: delta_rows.by_library(str(tmp_path / "delta")),
            lambda: iceberg_rows.by_library(tmp_path / "lake"),
        ]
        before = len(readers[0]())
        world.fill(2, first=2)
        more = copying(tmp_path, "k", "v", "v + 1 AS n")
        jet.run(more, JobConfig(parallelism=2), until="drained")
    for read in readers:
        rows = read()
        assert [row["n"] for row in rows].count(None) == before > 0
        assert all(row["n"] in (None, row["v"] + 1) for row in rows)
        assert len(rows) > before
    assert len(readers[0]()) == len(readers[1]())
