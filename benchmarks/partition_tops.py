"""Cost of knowing the newest event of every partition of a source, by the number of partitions.

Rows pass an aggregation by key on two threads; beside it nothing is observed but their number
(0 partitions), or the newest event of each partition: ours, and by a column of `observe` for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.ratios import ratio
from dagster_jet import Pipeline, sinks, sources
from dagster_jet.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.pipeline.graph import TimestampsNode
from dagster_jet.spark.frames.observations import Observations
from dagster_jet.spark.planning.event_time import TimestampsPlan, plan_timestamps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITIONS = (0, 1, 16, 64, 256)
ROWS = 100_000


def run(*, rounds: int, console: Console) -> dict[str, Any]:
    """Prints the curve: each action's first run, and the later ones but for the second."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    first: dict[tuple[str, int], float] = {}
    spent: dict[tuple[str, int], list[list[float]]] = {}
    try:
        actions = {
            (way, partitions): action_of(numbered(spark, partitions), way)
            for partitions in PARTITIONS
            for way in ("ours", "a column each")
        }
        warm_up(spark)
        for number in range(rounds + 2):
            for key, action in actions.items():
                before = cpu_s(spark)
                action.collect()
                took = cpu_s(spark) - before
                first.setdefault(key, took)
                if number > 1:
                    spent.setdefault(key, []).append([took])
    finally:
        spark.stop()
    table = Table(title=f"CPU of {ROWS:,} rows, against 0 partitions")
    both = ("ours", "a column each")
    for column in ("partitions", *both, "ours, ms", *(f"first run, {way}, s" for way in both)):
        table.add_column(column, justify="right")
    curve = {}
    for partitions in PARTITIONS:
        ratios = [str(ratio(spent[way, partitions], spent[way, 0])) for way in both]
        curve[partitions] = ratios
        middle = sorted(spent["ours", partitions])[rounds // 2][0]
        cold = [f"{first[way, partitions]:.1f}" for way in both]
        table.add_row(str(partitions), *ratios, f"{1000 * middle:.0f}", *cold)
    console.print(table)
    return {
        "curve": curve,
        "cpu_s": {f"{w} {p}": v for (w, p), v in spent.items()},
        "first_cpu_s": {f"{w} {p}": v for (w, p), v in first.items()},
    }


def warm_up(spark: SparkSession) -> None:
    """Loads what every action needs; their programs are compiled in their own first runs."""
    spark.range(0, ROWS, 1, 2).groupBy("id").count().collect()


def numbered(spark: SparkSession, partitions: int, rows: int = ROWS) -> DataFrame:
    """Rows of a source with so many partitions."""
    from pyspark.sql import functions as F

    number = F.col("id")
    columns = [number.alias("ts")]
    if partitions:
        columns.append((number % partitions).cast("int").alias(SOURCE_PARTITION_COLUMN))
    return spark.range(0, rows, 1, 2).select(*columns)


def action_of(rows: DataFrame, way: str) -> DataFrame:
    """An aggregation of the rows, observed on the way."""
    if way == "ours":
        return observing(rows)[0]
    plan = _plan(rows)
    return _aggregated(rows.observe("times", *plan.totals, *_column_each(rows)))


def observing(rows: DataFrame) -> tuple[DataFrame, Observations]:
    """Rows with observations, which are set when the action has run."""
    observations = Observations()
    is_partitioned = SOURCE_PARTITION_COLUMN in rows.columns
    seen = observations.observe_times(
        "rows.timestamps", _plan(rows), rows, per_partition=is_partitioned
    )
    return _aggregated(seen), observations


def _plan(rows: DataFrame) -> TimestampsPlan:
    p = Pipeline("observed")
    source = sources.files("/in", format="json", schema="ts long")
    out = sinks.files("/out", format="json")
    p.read_from(source, name="rows").with_timestamps("ts").write_to(out, name="out")
    node = p.graph["rows.timestamps"]
    assert isinstance(node, TimestampsNode)
    return replace(plan_timestamps(p.name, node, rows), partitions_of="rows")


def _aggregated(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.groupBy((F.col("ts") % 1000).alias("k")).agg(F.max("ts"), F.count("*"))


def _column_each(rows: DataFrame) -> list[Column]:
    """Former way, one column for each partition: rounded up, to have few different programs to
    compile."""
    from pyspark.sql import functions as F

    if SOURCE_PARTITION_COLUMN not in rows.columns:
        return []
    partition, time = F.col(SOURCE_PARTITION_COLUMN), F.col("ts")
    partitions = rows.agg(F.max(partition)).first()
    assert partitions is not None
    wanted = 1 << partitions[0].bit_length()
    return [F.max(F.when(partition == n, time)).alias(f"top_{n}") for n in range(wanted)]


def cpu_s(spark: SparkSession) -> float:
    """CPU seconds of Spark's process so far."""
    jvm = spark._jvm
    assert jvm is not None
    times = psutil.Process(jvm.java.lang.ProcessHandle.current().pid()).cpu_times()
    return float(times.user + times.system)
