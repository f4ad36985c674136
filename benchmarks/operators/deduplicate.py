"""Deduplication within 10 s of event time: every fifth row is a copy of one shortly before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.case import Case, Read
from benchmarks.data import SCHEMA, SENTINEL_KEY
from dagster_jet import Pipeline, sinks, sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The peer's one time is both the lag that it allows and how long it remembers.
WITHIN = "10 seconds"


def pipeline(source: Path, output: Path) -> Pipeline:
    job = Pipeline("deduplicate")
    rows = job.read_from(sources.files(str(source), format="parquet", schema=SCHEMA), name="rows")
    rows = rows.with_timestamps("ts", allowed_lag=WITHIN)
    firsts = rows.deduplicate(on="k", within=WITHIN, name="firsts")
    firsts.write_to(sinks.files(str(output), format="parquet"), name="out")
    return job


def query(read: Read, source: Path) -> DataFrame:
    from pyspark.sql import functions as F

    rows = read(source).withColumn("at", F.timestamp_millis("ts")).withWatermark("at", WITHIN)
    return rows.dropDuplicatesWithinWatermark(["k"]).select("k", "ts", "v")


def expected(rows_of: Callable[[str], str]) -> str:
    return f"SELECT DISTINCT k, ts, v FROM {rows_of('.')} WHERE k <> '{SENTINEL_KEY}'"


CASE = Case(
    name="deduplicate",
    pipeline=pipeline,
    queries={"dropDuplicatesWithinWatermark": query},
    format="parquet",
    expected=expected,
    actual=f"SELECT k, ts, v FROM output WHERE k <> '{SENTINEL_KEY}'",
)
