"""The two jobs in dagster_jet: exactly once, at default settings."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.jet_query import open_jet
from benchmarks.kafka_race.messages import LAG_MS, SCHEMA, WINDOW_MS
from benchmarks.kafka_race.order import Order, Told
from dagster_jet import Pipeline, Secret, aggregates, sinks, sources, windows
from dagster_jet.execution.events import EpochCompleted, JobEvent, SnapshotCommitted

DATABASE = "JET_RACE_DATABASE"


def pipeline(order: Order) -> Pipeline:
    job = Pipeline(f"kafka_{order.case}")
    rows = job.read_from(
        sources.kafka(order.servers, topics=[order.source], schema=SCHEMA), name="rows"
    )
    if order.case == "table":
        os.environ[DATABASE] = order.database
        rows.write_to(sinks.sql(Secret(DATABASE), table=order.target), name="out")
        return job
    counts = (
        rows.with_timestamps("ts", allowed_lag=f"{LAG_MS} ms")
        .group_by("k")
        .window(windows.tumbling(f"{WINDOW_MS} ms"))
        .aggregate(n=aggregates.count(), total=aggregates.sum("v"), name="counts")
    )
    counts.write_to(sinks.kafka(order.servers, topic=order.target, key="k"), name="out")
    return job


def run(order: Order) -> Told:
    until = "drained" if order.seconds is None else f"{order.seconds:g} seconds"
    return told_by(pipeline(order), Path(order.folder), until)


def told_by(job: Pipeline, folder: Path, until: str = "drained") -> Told:
    """Runs a job with one source at default settings."""
    told, read, by_epoch = Told(), 0, {0: 0}

    def on_event(event: JobEvent) -> None:
        nonlocal read
        if isinstance(event, EpochCompleted):
            read += event.rows
            by_epoch[event.epoch_id] = read
        elif isinstance(event, SnapshotCommitted):
            told.commits.append((time.time(), by_epoch[event.epoch_id]))

    with open_jet(folder) as jet:
        jet.run(job, until=until, on_event=on_event)
        told.done_at = time.time()
    return told
