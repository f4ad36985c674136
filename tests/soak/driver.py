"""The job that the soak kills: the crash suite's pipeline, and a function with state beside it.

python -m tests.soak.driver <world folder> '{"members": [...], "master": "local[2]", "until": ...}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dagster_jet import Jet, JobConfig, Pipeline, sinks
from dagster_jet.connectors.kafka import ranges
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import JobEvent

from ..integration.child import windows_over_windows

JOB = "soak"
LEASE_S = 2
OUTPUTS = {
    "counts": ("k", "window_start", "window_end", "n", "total"),
    "rollup": ("k", "window_start", "window_end", "n", "total"),
    "numbered": ("k", "n"),
    "raw": ("k", "ts", "v"),
}


def number(state: Any, row: dict[str, Any]) -> dict[str, Any]:
    """The how-manieth row of its key: whatever the order, 1 to N come once each."""
    state.value += 1
    return {"k": row["k"], "n": state.value}


def pipeline(folder: Path) -> Pipeline:
    """Two sources, three stateful stages, four sinks of three formats, cut at one point."""
    p = Pipeline(JOB)
    rows, counts, rollup = windows_over_windows(p, folder, shared=True)
    numbered = rows.group_by("k").map_stateful(
        number, create=int, output_schema="k string, n long", name="numbered"
    )
    counts.write_to(
        sinks.files(f"{folder}/out/counts", format="json", shared=True), name="counts_out"
    )
    rollup.write_to(
        sinks.files(f"{folder}/out/rollup", format="parquet", shared=True), name="rollup_out"
    )
    numbered.write_to(
        sinks.files(f"{folder}/out/numbered", format="json", shared=True), name="numbered_out"
    )
    rows.write_to(sinks.files(f"{folder}/out/raw", format="csv", shared=True), name="raw_out")
    return p


def see(event: JobEvent) -> None:
    print(event, flush=True)


def main(folder: Path, order: dict[str, Any]) -> int:
    return drive(folder, order, pipeline(folder), max_items_per_epoch=2)


def drive(folder: Path, order: dict[str, Any], p: Pipeline, *, max_items_per_epoch: int) -> int:
    """Runs a pipeline as the order says; returns the exit code."""
    spark = {"spark.master": order["master"], "spark.driver.memory": "768m"}
    tasks = order["tasks"]
    if tasks:
        # Otherwise as many rows as a soak has are read by one task.
        epoch_driver.SPARED_ROWS, ranges.ROWS_PER_TASK = 0, 1
        spark["spark.default.parallelism"] = spark["spark.sql.shuffle.partitions"] = str(tasks)
    if order["master"].startswith("local-cluster"):
        spark["spark.executor.memory"] = "512m"
    # Everything else at its default, but for two: a decision per file or two, not per second, and
    # a lease that does not make every restart wait.
    config = JobConfig(
        snapshot_interval="0 ms",
        max_items_per_epoch=max_items_per_epoch,
        parallelism=tasks,
    )
    with Jet(
        store=order["members"],
        spark=spark,
        work_dir=folder / "work",
        lease_ttl=f"{LEASE_S} seconds",
    ) as jet:
        try:
            result = jet.run(
                p, config, until=order["until"], on_event=see, standby=order["standby"]
            )
        except Exception as error:
            print(f"ended by {type(error).__name__}: {error}", flush=True)
            return 3
    print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
