"""Interval join, inner: rows of two streams with equal keys, at most 5 s apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.case import Case, Read
from benchmarks.data import SCHEMA, SENTINEL_KEY
from benchmarks.jet_query import LAG
from dagster_jet import Pipeline, sinks, sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LEFT, RIGHT = "left", "right"
WITHIN_S = 5


def pipeline(source: Path, output: Path) -> Pipeline:
    job = Pipeline("join")
    left, right = (
        job.read_from(
            sources.files(str(source / side), format="parquet", schema=SCHEMA), name=side
        ).with_timestamps("ts", allowed_lag=LAG)
        for side in (LEFT, RIGHT)
    )
    pairs = left.join(right, on="k", within=f"{WITHIN_S} seconds", name="pairs")
    pairs.write_to(sinks.files(str(output), format="parquet"), name="out")
    return job


def query(read: Read, source: Path) -> DataFrame:
    from pyspark.sql import functions as F

    left = read(source / LEFT).withColumn("at", F.timestamp_millis("ts")).withWatermark("at", LAG)
    right = read(source / RIGHT).select(
        F.col("k").alias("k_right"),
        F.col("ts").alias("ts_right"),
        F.col("v").alias("v_right"),
        F.timestamp_millis("ts").alias("at_right"),
    )
    right = right.withWatermark("at_right", LAG)
    near = F.expr(
        f"k = k_right AND at_right BETWEEN at - INTERVAL {WITHIN_S} SECONDS "
        f"AND at + INTERVAL {WITHIN_S} SECONDS"
    )
    return left.join(right, near).select("k", "ts", "v", "ts_right", "v_right")


def expected(rows_of: Callable[[str], str]) -> str:
    within = WITHIN_S * 1000
    return (
        "SELECT l.k, l.ts, l.v, r.ts AS ts_right, r.v AS v_right "
        f"FROM {rows_of(LEFT)} l JOIN {rows_of(RIGHT)} r ON l.k = r.k "
        f"AND r.ts BETWEEN l.ts - {within} AND l.ts + {within} WHERE l.k <> '{SENTINEL_KEY}'"
    )


CASE = Case(
    name="join",
    pipeline=pipeline,
    queries={"join": query},
    format="parquet",
    expected=expected,
    actual=f"SELECT k, ts, v, ts_right, v_right FROM output WHERE k <> '{SENTINEL_KEY}'",
)
