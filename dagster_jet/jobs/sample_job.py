"""A small job with typical stages. Its run loads, and compiles, what most jobs need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_jet import sinks, sources
from dagster_jet.execution.stopping import StopSignal, parse_until
from dagster_jet.exports.exporting import Exporting
from dagster_jet.job_config import JobConfig
from dagster_jet.jobs.driver import Driver
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.members_repairer import MembersRepairer
from dagster_jet.pipeline import Pipeline, windows
from dagster_jet.pipeline import aggregates as agg
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store, StoreConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = [{"k": "a", "ts": second * 1000, "v": second} for second in range(20)]


def run_sample(open_session: Callable[[], SparkSession], folder: Path) -> None:
    """Runs the job to its end, in a folder that all of Spark's tasks can read and write.

    A second execution continues from a snapshot of the first, as that of a restarted job does.
    """
    store = Store.open(StoreConfig(tuple(f"file://{folder}/{member}" for member in "abc")))
    try:
        for number, until in enumerate(("drained", "completed")):
            _write_input(folder, number)
            pipeline = _pipeline(folder)
            order = Order(
                job=pipeline.name,
                graph=pipeline.graph,
                config=JobConfig(snapshot_interval="0 ms", max_items_per_epoch=len(_ROWS)),
                options=StartOptions(),
                until=parse_until(until),
                store=store,
                work_dir=folder / "work",
            )
            driver = Driver(order, open_session, lambda event: None, None, Exporting())
            driver.run(StopSignal(), MembersRepairer(store, order.job, None, lambda event: None))
    finally:
        store.close()


def _write_input(folder: Path, number: int) -> None:
    for part in range(2):
        path = folder / "in" / f"{number}-{part}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(map(json.dumps, _ROWS)))


def _pipeline(folder: Path) -> Pipeline:
    p = Pipeline("warm_up")
    rows = p.read_from(
        sources.files(f"{folder}/in", format="json", schema="k string, ts long, v long"), name="in"
    ).with_timestamps("ts")
    rows.write_to(sinks.files(f"{folder}/raw", format="csv"), name="raw")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling("5 seconds"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    counts.write_to(sinks.files(f"{folder}/counts", format="parquet"), name="counts_out")
    numbered = rows.group_by("k").map_stateful(
        _number, create=int, output_schema="k string, n long", name="numbered"
    )
    numbered.write_to(sinks.files(f"{folder}/numbered", format="json"), name="numbered_out")
    return p


def _number(state, row):  # type: ignore[no-untyped-def]
    state.value += 1
    return {"k": row["k"], "n": state.value}
