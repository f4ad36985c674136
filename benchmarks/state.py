"""Large state: memory, how long restore takes, what a snapshot adds to its epoch and the next."""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.data import T0_MS, line, set_time
from benchmarks.memory import MemoryMeter
from benchmarks.metered_child import ProcessMeter, run_metered
from benchmarks.state_query import Order

LOAD_ROWS = 500_000
"""Rows per file and epoch, while the state is filled."""
GOALS = {"peak_mib": 4096, "restore_s": 5.0, "pause_share": 0.10}
_METERED_CHANGES = 15
_RESAMPLED = 2000
_TIMEOUT_S = 3600

M = TypeVar("M", bound=ProcessMeter)


@dataclass(frozen=True)
class Sizes:
    """Numbers of keys, of rows that change them per epoch, and of epochs."""

    keys: int
    changing: int
    changes: int


def run(folder: Path, sizes: Sizes, *, console: Console) -> dict[str, Any]:
    """Fills the state in one process, and changes a little of it in two more that restore it.

    Memory is looked at in the first two. Times are those of the third: a look at the memory of a
    process stops it for a moment, and costs a fifth of a core.
    """
    keys, changing = sizes.keys, sizes.changing
    load = _write(folder / "in", _every_key(keys), first=0)
    order = Order(
        source=str(folder / "in"),
        folder=str(folder / "job"),
        result=str(folder / "told.json"),
        rows_per_epoch=LOAD_ROWS,
        snapshot_interval_s=1.0,
    )
    filled, filling = _run(order, folder, MemoryMeter)
    console.print(
        f"filled: {filled['state_rows']:,} rows, {filling.peak_mib:,.0f} MiB {filling.peak}"
    )
    few = _write(folder / "in", _some_keys(sizes, _METERED_CHANGES, seed=13), first=load)
    _, changing_meter = _run(replace(order, rows_per_epoch=changing), folder, MemoryMeter)
    _write(folder / "in", _some_keys(sizes, sizes.changes, seed=12), first=few)
    changed, _ = _run(replace(order, rows_per_epoch=changing), folder, Unwatched)
    saved = {int(epoch): snapshot for epoch, snapshot in changed["snapshots"].items()}
    spans = _spans({int(epoch): told for epoch, told in changed["epochs"].items()})
    with_snapshot = [ms for epoch, ms in spans.items() if epoch in saved]
    without = [ms for epoch, ms in spans.items() if epoch not in saved]
    behind = [ms for epoch, ms in spans.items() if epoch - 1 in saved and epoch not in saved]
    pause_ms = statistics.median(with_snapshot) - statistics.median(without)
    low_ms, high_ms = _interval(with_snapshot, without)
    result: dict[str, Any] = {
        "keys": keys,
        "changing_per_epoch": changing,
        "load_average": os.getloadavg()[0],
        "memory_measure": filling.measure,
        "peak_mib": max(filling.peak_mib, changing_meter.peak_mib),
        "peak_mib_filling": filling.peak_mib,
        "peak_mib_restored": changing_meter.peak_mib,
        "peak_by_kind": max(filling, changing_meter, key=lambda meter: meter.peak_mib).peak,
        "spark_start_s": changed["spark_s"],
        "restore_s": changed["start_ms"] / 1000,
        "epochs_with_snapshot": len(with_snapshot),
        "epochs_without": len(without),
        "epoch_ms_with_snapshot": statistics.median(with_snapshot),
        "epoch_ms_behind_one": statistics.median(behind),
        "epoch_ms_without": statistics.median(without),
        "phase1_ms": statistics.median([s["phase1_ms"] for s in saved.values()]),
        "bytes_per_snapshot": statistics.median([s["bytes_written"] for s in saved.values()]),
        "pause_ms": pause_ms,
        "pause_ms_95": f"{low_ms:.0f} to {high_ms:.0f}",
        "pause_share": pause_ms / statistics.median(without),
    }
    table = Table("measure", "value", "goal", title=f"state of {keys:,} keys")
    for name, value in result.items():
        text = f"{value:,.3f}" if isinstance(value, float) else f"{value}"
        table.add_row(name, text, f"at most {GOALS[name]:g}" if name in GOALS else "")
    console.print(table)
    return {**result, "filled": filled, "changed": changed}


def _spans(epochs: dict[int, tuple[int, float]]) -> dict[int, float]:
    """Time of each epoch, from the end of the epoch before: whatever holds the job up is in one of
    them.

    The first ones warm up, and the last one has no rows.
    """
    ends = [(epoch, at_ms) for epoch, (rows, at_ms) in sorted(epochs.items()) if rows][5:]
    return {epoch: at_ms - before_ms for (_, before_ms), (epoch, at_ms) in pairwise(ends)}


def _interval(longer: list[float], shorter: list[float]) -> tuple[float, float]:
    """Interval of 95 % for the difference of the medians, by bootstrap."""
    choose = random.Random(5)
    found = sorted(
        statistics.median(choose.choices(longer, k=len(longer)))
        - statistics.median(choose.choices(shorter, k=len(shorter)))
        for _ in range(_RESAMPLED)
    )
    return found[_RESAMPLED // 40], found[-_RESAMPLED // 40]


def _every_key(keys: int) -> Iterator[np.ndarray]:
    order = np.random.default_rng(11).permutation(keys)
    for first in range(0, keys, LOAD_ROWS):
        yield order[first : first + LOAD_ROWS]


def _some_keys(sizes: Sizes, epochs: int, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    for _ in range(epochs):
        yield generator.integers(0, sizes.keys, sizes.changing)


def _write(folder: Path, parts: Iterator[np.ndarray], *, first: int) -> int:
    """One file per part; a file is an epoch, because the next one would be too much."""
    folder.mkdir(parents=True, exist_ok=True)
    number = first
    for part in parts:
        path = folder / f"{number:06d}.json"
        path.write_text("".join([line(f"{k:09d}", T0_MS + number, 100) for k in part.tolist()]))
        set_time(path, number)
        number += 1
    return number


class Unwatched(ProcessMeter):
    """Meter that never looks."""

    period_s = _TIMEOUT_S

    def observe(self, tree: Sequence[psutil.Process]) -> None:
        """Does nothing; it is not called before the run is over."""


def _run(order: Order, folder: Path, meter_of: Callable[[int], M]) -> tuple[dict[str, Any], M]:
    meter = run_metered(
        "benchmarks.state_query",
        asdict(order),
        folder / "order.json",
        meter_of,
        who="the job",
        timeout_s=_TIMEOUT_S,
    )
    told: dict[str, Any] = json.loads(Path(order.result).read_text(encoding="utf-8"))
    return told, meter
