"""The job in PyFlink: Iceberg's own sink, exactly once by its commit per checkpoint.

Runs in an environment of its own, which has PyFlink and not this project's packages.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from benchmarks.kafka_race.order import Told
from benchmarks.lake_race.order import Order

_COLUMNS = "n BIGINT, k STRING, ts BIGINT, v BIGINT"


def metadata_of(out: str) -> Path:
    """The newest metadata of the table, in the folder of a file-based catalog."""
    folder = Path(out, "race", "rows", "metadata")
    number = (folder / "version-hint.text").read_text(encoding="utf-8").strip()
    return folder / f"v{number}.metadata.json"


def run(order: Order) -> Told:
    # Flink loads Hadoop's classes from the classpath alone.
    hadoop, others = (
        [jar for jar in order.jars if ("/hadoop-" in jar) is meant] for meant in (True, False)
    )
    os.environ["HADOOP_CLASSPATH"] = ":".join(hadoop)
    from pyflink.common import Configuration
    from pyflink.table import EnvironmentSettings, TableEnvironment

    configuration = Configuration()
    for key, value in _settings(order, others).items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode()
    tables = TableEnvironment.create(settings.with_configuration(configuration).build())
    tables.execute_sql(
        f"CREATE TABLE messages ({_COLUMNS}) WITH ('connector' = 'kafka', 'format' = 'json', "
        f"'topic' = '{order.source}', 'properties.bootstrap.servers' = '{order.servers}', "
        "'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset')"
    )
    tables.execute_sql(
        "CREATE CATALOG lake WITH ('type' = 'iceberg', 'catalog-type' = 'hadoop', "
        f"'warehouse' = 'file://{order.out}')"
    )
    tables.execute_sql("CREATE DATABASE lake.race")
    tables.execute_sql(f"CREATE TABLE lake.race.`rows` ({_COLUMNS}) WITH ('format-version' = '2')")
    tables.execute_sql("INSERT INTO lake.race.`rows` SELECT * FROM messages").wait()
    return Told(_commits(order.out), time.time())


def _settings(order: Order, jars: list[str]) -> dict[str, str]:
    return {
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.process.size": "2g",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{order.folder}/checkpoints",
        "table.exec.iceberg.use-v2-sink": "true",
        "rest.bind-port": "0",
        "rest.port": "0",
        "pipeline.jars": ";".join(f"file://{jar}" for jar in jars),
    }


def _commits(out: str) -> list[tuple[float, int]]:
    found = json.loads(metadata_of(out).read_text(encoding="utf-8"))["snapshots"]
    return [
        (one["timestamp-ms"] / 1000, int(one["summary"]["total-records"]))
        for one in sorted(found, key=lambda one: one["sequence-number"])
    ]
