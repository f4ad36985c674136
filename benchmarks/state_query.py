"""The job of the state benchmark, in a process of its own:
`python -m benchmarks.state_query <order.json>`.

Counts of keys in a window that stays open, loaded first, then changed a little in every epoch.
Writes what the job said of its epochs and snapshots, with times.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jet_query import NEVER, pipeline
from dagster_jet import Jet, JobConfig
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionStarted,
    JobEvent,
    SnapshotCommitted,
)

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Order:
    """Settings of a run on one store."""

    source: str
    folder: str
    result: str
    rows_per_epoch: int
    snapshot_interval_s: float
    driver_memory: str = "1500m"
    parallelism: int | None = None


@dataclass
class Told:
    """Rows and end, in milliseconds, by epoch id; time and bytes of a snapshot, by its epoch."""

    spark_s: float = 0.0
    start_ms: float = 0.0
    """Milliseconds from the claim of the job to the first epoch; most of it is restore."""
    state_rows: int = 0
    epochs: dict[int, tuple[int, float]] = field(default_factory=dict)
    snapshots: dict[int, dict[str, float]] = field(default_factory=dict)


def run(order: Order) -> Told:
    told, folder = Told(), Path(order.folder)

    def on_event(event: JobEvent) -> None:
        if isinstance(event, ExecutionStarted):
            told.start_ms = event.start_duration_ms
        elif isinstance(event, EpochCompleted):
            told.epochs[event.epoch_id] = (event.rows, time.monotonic() * 1000)
        elif isinstance(event, SnapshotCommitted):
            told.state_rows = event.stages["counts"].state_rows
            told.snapshots[event.epoch_id] = {
                "phase1_ms": event.phase1_ms,
                "bytes_written": event.bytes_written,
                "state_bytes": event.state_bytes,
            }

    spark: dict[str, Any] = {"spark.master": "local[2]", "spark.driver.memory": order.driver_memory}
    members = [f"file://{folder}/member-{letter}" for letter in "abc"]
    config = JobConfig(
        parallelism=order.parallelism,
        snapshot_interval=f"{round(order.snapshot_interval_s * 1000)} ms",
        max_items_per_epoch=order.rows_per_epoch,
        target_epoch_duration=NEVER,
    )
    with Jet(store=members, spark=spark, work_dir=folder / "work") as jet:
        began = time.monotonic()
        session = jet.session()
        session.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").count()
        told.spark_s = time.monotonic() - began
        query = pipeline(Path(order.source), folder / "out", DAY_MS)
        jet.run(query, config, until="drained", on_event=on_event)
    return told


def main() -> None:
    order = Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(order.result).write_text(json.dumps(asdict(run(order))), encoding="utf-8")


if __name__ == "__main__":
    main()
