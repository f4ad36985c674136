"""The windowed count as a case: JSON lines in, JSON lines out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import jet_query
from benchmarks.case import Case, Read
from benchmarks.data import SENTINEL_KEY, WINDOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_jet import Pipeline


def pipeline(source: Path, output: Path) -> Pipeline:
    return jet_query.pipeline(source, output, WINDOW_MS)


def query(read: Read, source: Path) -> DataFrame:
    from pyspark.sql import functions as F

    rows = read(source).select("k", F.timestamp_millis("ts").alias("at"))
    window = F.window("at", f"{WINDOW_MS} milliseconds")
    counts = (
        rows.withWatermark("at", "2 seconds").groupBy(window, "k").agg(F.count(F.lit(1)).alias("n"))
    )
    return counts.select(
        "k",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "n",
    )


def expected_of(window_ms: int) -> Callable[[Callable[[str], str]], str]:
    """Counts by key and window."""

    def expected(rows_of: Callable[[str], str]) -> str:
        return (
            f"SELECT k, ts - ts % {window_ms} AS start_ms, count(*)::BIGINT AS n "
            f"FROM {rows_of('.')} WHERE k <> '{SENTINEL_KEY}' GROUP BY ALL"
        )

    return expected


ACTUAL = (
    "SELECT k, epoch_ms(replace(window_start, 'Z', '')::TIMESTAMP) AS start_ms, n "
    f"FROM output WHERE k <> '{SENTINEL_KEY}'"
)
CASE = Case(
    name="windowed_count",
    pipeline=pipeline,
    queries={"groupBy": query},
    format="json",
    expected=expected_of(WINDOW_MS),
    actual=ACTUAL,
    output_columns="k: 'VARCHAR', window_start: 'VARCHAR', n: 'BIGINT'",
)
