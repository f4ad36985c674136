"""Cost of a small epoch and of a restart as the state grows: 10² to 10⁷ keys of an open window.

All settings are the defaults. A process fills the state. Others start the job anew one after the
other, each with a few rows that wait, and then get a small file for each of some epochs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.data import DAY_MS, T0_MS
from benchmarks.metered_child import run_metered
from benchmarks.process import CpuMeter
from dagster_jet import Jet, Pipeline, aggregates, sinks, sources, windows
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionStarted,
    JobEvent,
    SnapshotCommitted,
)

KEYS = (100, 10_000, 100_000, 1_000_000, 10_000_000)
STARTS, EPOCHS, WARM = 3, 60, 20
"""Measured starts; epochs of each, the first ones left out."""
ROWS, EVERY_S = 100, 0.25
"""Rows of a small file, and seconds between two."""
_FILE_ROWS = 1_000_000
_TIMEOUT_S = 7200


@dataclass(frozen=True)
class Order:
    """A run of the job: to its end (`epochs` = 0), or with a new file for each epoch."""

    folder: str
    result: str
    keys: int
    epochs: int = 0
    first: int = 0
    """Number of the next file."""


@dataclass
class Told:
    start_s: float = 0.0
    """From the start of the process to the first commit of new rows."""
    restore_ms: float = 0.0
    """From the claim of the job to the execution's start."""
    state_rows: int = 0
    epoch_ms: list[float] = field(default_factory=list)
    driver_cpu_ms: list[float] = field(default_factory=list)
    """CPU of the driver's Python process between two epochs' ends."""
    bytes_written: list[int] = field(default_factory=list)


def run(folder: Path, *, keys: list[int], console: Console) -> dict[str, Any]:
    """Medians by number of keys."""
    result: dict[str, Any] = {"load": os.getloadavg()[0], "keys": {}}
    table = Table("keys", "start s", "of it restore", "epoch ms", "driver's CPU ms", "snapshot KB")
    for count in keys:
        result["keys"][count] = one = _measured(folder / f"{count}", count)
        table.add_row(
            f"{count:,}",
            f"{one['start_s']:.1f}",
            f"{one['restore_s']:.2f}",
            f"{one['epoch_ms']:.0f}",
            f"{one['driver_cpu_ms']:.0f}",
            f"{one['snapshot_bytes'] / 1000:,.0f}",
        )
        console.print(f"{count:,} keys: {one}")
    console.print(table)
    return result


def _measured(folder: Path, keys: int) -> dict[str, float]:
    (folder / "in").mkdir(parents=True)
    number = 0
    for first in range(0, keys, _FILE_ROWS):
        _write(folder, number, np.arange(first, min(first + _FILE_ROWS, keys)))
        number += 1
    began = time.monotonic()
    filled = _child(Order(str(folder), str(folder / "told.json"), keys))
    fill_s = time.monotonic() - began
    assert filled.state_rows == keys, filled
    starts = []
    for _ in range(STARTS):
        _write(folder, number, np.arange(10) % keys)
        order = Order(str(folder), str(folder / "told.json"), keys, EPOCHS, number + 1)
        starts.append(_child(order))
        number += 1 + EPOCHS
    small = [ms for told in starts for ms in told.epoch_ms[WARM:]]
    cpu = [ms for told in starts for ms in told.driver_cpu_ms[WARM:]]
    return {
        "fill_s": fill_s,
        "start_s": statistics.median(told.start_s for told in starts),
        "restore_s": statistics.median(told.restore_ms for told in starts) / 1000,
        "epochs": len(small),
        "epoch_ms": statistics.median(small),
        "driver_cpu_ms": statistics.median(cpu),
        "snapshot_bytes": statistics.median(
            written for told in starts for written in told.bytes_written[1:]
        ),
    }


def _write(folder: Path, number: int, keys: np.ndarray) -> None:
    times = np.full(len(keys), T0_MS + number)
    table = pa.table({"k": pa.array(keys, pa.int64()), "ts": pa.array(times, pa.int64())})
    hidden = folder / "in" / f".{number:06d}.parquet"
    pq.write_table(table, hidden)
    hidden.rename(folder / "in" / f"{number:06d}.parquet")


def _child(order: Order) -> Told:
    path = Path(order.folder) / "order.json"
    run_metered(
        "benchmarks.key_growth", asdict(order), path, CpuMeter, who="job", timeout_s=_TIMEOUT_S
    )
    return Told(**json.loads(Path(order.result).read_text(encoding="utf-8")))


def _pipeline(folder: Path) -> Pipeline:
    p = Pipeline("keys")
    source = sources.files(str(folder / "in"), format="parquet", schema="k long, ts long")
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag="1 second")
    window = windows.tumbling(f"{DAY_MS} ms")
    counts = rows.group_by("k").window(window).aggregate(n=aggregates.count(), name="counts")
    counts.write_to(sinks.files(str(folder / "out"), format="parquet"), name="out")
    return p


def _run(order: Order) -> Told:
    told, folder, number = Told(), Path(order.folder), order.first
    cpu_s, has_committed = time.process_time(), threading.Event()
    members = [f"file://{folder}/member-{letter}" for letter in "abc"]
    generator = np.random.default_rng(order.first)
    with Jet(store=members, work_dir=folder / "work") as jet:

        def on_event(event: JobEvent) -> None:
            nonlocal cpu_s
            if isinstance(event, ExecutionStarted):
                told.restore_ms = event.start_duration_ms
            elif isinstance(event, EpochCompleted) and event.rows:
                now_s = time.process_time()
                told.epoch_ms.append(event.duration_ms)
                told.driver_cpu_ms.append(1000 * (now_s - cpu_s))
                cpu_s = now_s
            elif isinstance(event, SnapshotCommitted):
                told.state_rows = event.stages["counts"].state_rows
                told.bytes_written.append(event.bytes_written)
                if not has_committed.is_set():
                    told.start_s = time.time() - psutil.Process().create_time()
                    has_committed.set()

        def feed() -> None:
            has_committed.wait()
            for epoch in range(order.epochs):
                _write(folder, number + epoch, generator.integers(0, order.keys, ROWS))
                time.sleep(EVERY_S)
            time.sleep(4 * EVERY_S)
            jet.job("keys").suspend()

        if order.epochs:
            threading.Thread(target=feed, daemon=True).start()
        until: Literal["stopped", "drained"] = "stopped" if order.epochs else "drained"
        jet.run(_pipeline(folder), until=until, on_event=on_event)
    return told


def main() -> None:
    order = Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(order.result).write_text(json.dumps(asdict(_run(order))), encoding="utf-8")


if __name__ == "__main__":
    main()
