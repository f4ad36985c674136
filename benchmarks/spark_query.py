"""The windowed count in Spark Structured Streaming: the peer, as fast as it goes for free.

RocksDB state with changelog checkpointing, as many shuffle partitions as cores, all files known
from the start (`availableNow`), file sink in append mode.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_STATE = "spark.sql.streaming.stateStore"
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    f"{_STATE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}


def open_session() -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("peer")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def start(
    session: SparkSession, source: Path, folder: Path, files_per_trigger: int, window_ms: int
) -> StreamingQuery:
    from pyspark.sql import functions as F

    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_trigger)
    rows = reader.json(str(source)).select("k", F.timestamp_millis("ts").alias("at"))
    window = F.window("at", f"{window_ms} milliseconds")
    counts = (
        rows.withWatermark("at", "2 seconds").groupBy(window, "k").agg(F.count(F.lit(1)).alias("n"))
    )
    results = counts.select(
        "k",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "n",
    )
    return (
        results.writeStream.format("json")
        .outputMode("append")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
