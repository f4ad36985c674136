"""Three stages: a windowed count, and longer windows over it, twice. JSON lines in and out."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.case import Case, Read
from benchmarks.count_case import ACTUAL, expected_of
from benchmarks.data import SCHEMA
from benchmarks.jet_query import LAG
from dagster_jet import Pipeline, aggregates, sinks, sources, windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES_S = (2, 4, 8)


def pipeline(source: Path, output: Path) -> Pipeline:
    job = Pipeline("rollups")
    files = sources.files(str(source), format="json", schema=SCHEMA, shared=True)
    rows = job.read_from(files, name="rows").with_timestamps("ts", allowed_lag=LAG)
    first, *longer = (windows.tumbling(timedelta(seconds=size)) for size in SIZES_S)
    counts = rows.group_by("k").window(first).aggregate(n=aggregates.count(), name="counts")
    for number, window in enumerate(longer):
        counts = (
            counts.group_by("k")
            .window(window)
            .aggregate(n=aggregates.sum("n"), name=f"longer_{number}")
        )
    counts.write_to(sinks.files(str(output), format="json", shared=True), name="out")
    return job


def query(read: Read, source: Path) -> DataFrame:
    from pyspark.sql import functions as F

    rows = read(source).select("k", F.timestamp_millis("ts").alias("at"))
    rows = rows.withWatermark("at", "2 seconds").withColumn("n", F.lit(1))
    for size in SIZES_S:
        window = F.window("at", f"{size} seconds")
        counts = rows.groupBy(window, "k").agg(F.sum("n").alias("n"))
        rows = counts.select("k", F.window_time("window").alias("at"), "n", "window")
    return rows.select("k", F.col("window.start").alias("window_start"), "n")


CASE = Case(
    name="rollups",
    pipeline=pipeline,
    queries={"groupBy": query},
    format="json",
    expected=expected_of(1000 * SIZES_S[-1]),
    actual=ACTUAL,
    output_columns="k: 'VARCHAR', window_start: 'VARCHAR', n: 'BIGINT'",
)
