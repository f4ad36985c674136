"""A case in Spark Structured Streaming: the peer, as fast as it goes for free.

RocksDB state with changelog checkpointing, as many shuffle partitions as cores, all files known
from the start (`availableNow`), file sink in append mode.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.case import Case
from benchmarks.data import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
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
    # As in our session: for queries with Python in them.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}


def open_session(more: Mapping[str, str] | None = None) -> SparkSession:
    """Args: more: settings beside `SETTINGS`."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # not whatever the PATH has
    builder = SparkSession.builder.appName("peer")
    for key, value in {**SETTINGS, **(more or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def start(
    session: SparkSession, case: Case, variant: str, source: Path, folder: Path, files: int
) -> StreamingQuery:
    """`files`: per trigger, of each input folder."""

    def read(path: Path) -> DataFrame:
        reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files)
        return reader.format(case.format).load(str(path))

    return (
        case.query(variant)(read, source)
        .writeStream.format(case.format)
        .outputMode("append")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
