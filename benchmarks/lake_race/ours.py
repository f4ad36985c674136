"""The jobs in dagster_jet: into Parquet files, into a table of a lake; at default settings."""

from __future__ import annotations

from pathlib import Path

from benchmarks.kafka_race.messages import SCHEMA
from benchmarks.kafka_race.order import Told
from benchmarks.kafka_race.ours import told_by
from benchmarks.lake_race.order import Order
from dagster_jet import Pipeline, sinks, sources

TABLE = "race.rows"


def catalog_at(folder: str) -> dict[str, str]:
    """The catalog of the run, in SQLite."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"{folder}/out"}


def pipeline(order: Order) -> Pipeline:
    job = Pipeline(f"{order.case}_{order.engine}")
    if order.case == "files":
        source = sources.files(order.source, format="json", schema=SCHEMA)
    else:
        source = sources.kafka(order.servers, topics=[order.source], schema=SCHEMA)
    if order.engine == "parquet":
        sink = sinks.files(order.out, format="parquet")
    elif order.case == "files":
        sink = sinks.delta(order.out)
    else:
        sink = sinks.iceberg("lake", TABLE, catalog_options=catalog_at(order.folder))
    job.read_from(source, name="rows").write_to(sink, name="out")
    return job


def run(order: Order) -> Told:
    return told_by(pipeline(order), Path(order.folder))
