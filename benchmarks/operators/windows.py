"""Tumbling, sliding and session windows: count and sum per key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.case import Case, Query, Read
from benchmarks.data import SCHEMA, SENTINEL_KEY
from benchmarks.jet_query import LAG
from dagster_jet import Pipeline, aggregates, sinks, sources, windows
from dagster_jet.pipeline.windows import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TUMBLE_S, SLIDING_S, SLIDE_S = 10, 60, 10
GAP_MS = 4999
"""Odd, where all event times are even: two rows exactly a gap apart are one session for the peer,
and two for us."""


def _pipeline(window: Window) -> Callable[[Path, Path], Pipeline]:
    def pipeline(source: Path, output: Path) -> Pipeline:
        job = Pipeline("windows")
        rows = job.read_from(
            sources.files(str(source), format="parquet", schema=SCHEMA), name="rows"
        )
        rows = rows.with_timestamps("ts", allowed_lag=LAG)
        totals = (
            rows.group_by("k")
            .window(window)
            .aggregate(n=aggregates.count(), total=aggregates.sum("v"), name="totals")
        )
        totals.write_to(sinks.files(str(output), format="parquet"), name="out")
        return job

    return pipeline


def _query(window: Callable[[], Column], *, merge_locally: bool = False) -> Query:
    def query(read: Read, source: Path) -> DataFrame:
        from pyspark.sql import functions as F

        rows = read(source).select("k", F.timestamp_millis("ts").alias("at"), "v")
        if merge_locally:
            rows.sparkSession.conf.set(
                "spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition", "true"
            )
        return (
            rows.withWatermark("at", LAG)
            .groupBy(window().alias("w"), "k")
            .agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))
            .select(
                "k",
                F.col("w.start").alias("window_start"),
                F.col("w.end").alias("window_end"),
                "n",
                "total",
            )
        )

    return query


def _tumbling() -> Column:
    from pyspark.sql import functions as F

    return F.window("at", f"{TUMBLE_S} seconds")


def _sliding() -> Column:
    from pyspark.sql import functions as F

    return F.window("at", f"{SLIDING_S} seconds", f"{SLIDE_S} seconds")


def _session() -> Column:
    from pyspark.sql import functions as F

    return F.session_window("at", f"{GAP_MS} milliseconds")


_SUMS = "count(*)::BIGINT AS n, sum(v)::BIGINT AS total"
_ACTUAL = (
    "SELECT k, epoch_ms(window_start) AS start_ms, epoch_ms(window_end) AS end_ms, n, total "
    f"FROM output WHERE k <> '{SENTINEL_KEY}'"
)


def _expect_tumbling(rows_of: Callable[[str], str]) -> str:
    size = TUMBLE_S * 1000
    return (
        f"SELECT k, ts - ts % {size} AS start_ms, ts - ts % {size} + {size} AS end_ms, {_SUMS} "
        f"FROM {rows_of('.')} WHERE k <> '{SENTINEL_KEY}' GROUP BY ALL"
    )


def _expect_sliding(rows_of: Callable[[str], str]) -> str:
    size, slide = SLIDING_S * 1000, SLIDE_S * 1000
    return (
        f"SELECT k, ts - ts % {slide} - nth * {slide} AS start_ms, "
        f"ts - ts % {slide} - nth * {slide} + {size} AS end_ms, {_SUMS} "
        f"FROM {rows_of('.')}, range({size // slide}) AS nths(nth) "
        f"WHERE k <> '{SENTINEL_KEY}' GROUP BY ALL"
    )


def _expect_sessions(rows_of: Callable[[str], str]) -> str:
    gap = GAP_MS
    of_key = "PARTITION BY k ORDER BY ts"
    return (
        f"WITH steps AS (SELECT *, ts - lag(ts, 1, ts - {gap}) OVER ({of_key}) >= {gap} AS first "
        f"FROM {rows_of('.')} WHERE k <> '{SENTINEL_KEY}'), "
        f"numbered AS (SELECT *, sum(first::INT) OVER ({of_key} ROWS UNBOUNDED PRECEDING) AS s "
        "FROM steps) "
        f"SELECT k, min(ts) AS start_ms, max(ts) + {gap} AS end_ms, {_SUMS} "
        "FROM numbered GROUP BY k, s"
    )


TUMBLING = Case(
    name="tumbling",
    pipeline=_pipeline(windows.tumbling(f"{TUMBLE_S} seconds")),
    queries={"groupBy": _query(_tumbling)},
    format="parquet",
    expected=_expect_tumbling,
    actual=_ACTUAL,
)
SLIDING = Case(
    name="sliding",
    pipeline=_pipeline(windows.sliding(f"{SLIDING_S} seconds", f"{SLIDE_S} seconds")),
    queries={"groupBy": _query(_sliding)},
    format="parquet",
    expected=_expect_sliding,
    actual=_ACTUAL,
)
SESSION = Case(
    name="session",
    pipeline=_pipeline(windows.session(f"{GAP_MS} milliseconds")),
    queries={
        "session_window": _query(_session),
        "session_window, merged before the shuffle": _query(_session, merge_locally=True),
    },
    format="parquet",
    expected=_expect_sessions,
    actual=_ACTUAL,
)
