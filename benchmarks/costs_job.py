"""The job of the costs benchmark, in a process of its own:
`python -m benchmarks.costs_job <order.json>`.

Sums per key, one updated row per key and epoch, at default settings but for what is asked about.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.data import SCHEMA
from benchmarks.jet_query import open_jet
from dagster_jet import Jet, JobConfig, Pipeline, aggregates, sinks, sources
from dagster_jet.execution.events import EpochCompleted, JobEvent, SnapshotCommitted


@dataclass(frozen=True)
class Order:
    """One measured job. Inputs are read one after the other, each by a run of its own."""

    inputs: tuple[str, ...]
    folder: str
    result: str
    guarantee: Literal["none", "exactly-once"] = "exactly-once"
    sinks: int = 1
    is_stateful: bool = False


@dataclass
class Told:
    """Epochs of the last input: (seconds at its end, rows)."""

    epochs: list[tuple[float, int]] = field(default_factory=list)
    state_rows: int = 0
    written: list[int] = field(default_factory=list)
    """Rows in each sink's files."""


def pipeline(source: Path, output: Path, order: Order) -> Pipeline:
    job = Pipeline("costs")
    rows = job.read_from(sources.files(str(source), format="json", schema=SCHEMA), name="rows")
    if order.is_stateful:
        rows = rows.group_by("k").rolling_aggregate(
            n=aggregates.count(), total=aggregates.sum("v"), name="totals"
        )
    for number in range(order.sinks):
        rows.write_to(sinks.files(str(output / f"{number}"), format="json"), name=f"out_{number}")
    return job


def run(order: Order) -> Told:
    told, folder, source = Told(), Path(order.folder), Path(order.folder) / "in"

    def on_event(event: JobEvent) -> None:
        if isinstance(event, EpochCompleted) and event.rows:
            told.epochs.append((time.monotonic(), event.rows))
        elif isinstance(event, SnapshotCommitted) and order.is_stateful:
            told.state_rows = event.stages["totals"].state_rows

    source.mkdir(parents=True)
    with open_jet(folder) as jet:
        for number, given in enumerate(order.inputs):
            for path in sorted(Path(given).glob("*.json")):
                (source / f"{number}-{path.name}").hardlink_to(path)
            told.epochs.clear()
            _run(jet, source, order, on_event)
    told.written = [
        sum(_lines(path) for path in (folder / "out" / f"{number}").rglob("*.json"))
        for number in range(order.sinks)
    ]
    return told


def _run(jet: Jet, source: Path, order: Order, on_event: Any) -> None:
    config = JobConfig(guarantee=order.guarantee, snapshot_interval="1 second")
    output = Path(order.folder) / "out"
    jet.run(pipeline(source, output, order), config, until="drained", on_event=on_event)


def _lines(path: Path) -> int:
    return 0 if "_epochs" in path.parts else path.read_bytes().count(b"\n")


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    order = Order(**{**given, "inputs": tuple(given["inputs"])})
    Path(order.result).write_text(json.dumps(asdict(run(order))), encoding="utf-8")


if __name__ == "__main__":
    main()
