"""Bytes of a snapshot when little changes: 1 M keys of state, 1 % of them per snapshot."""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from benchmarks import jet_query
from benchmarks.data import T0_MS, line, set_time
from dagster_jet.execution.events import EpochCompleted, JobEvent, SnapshotCommitted
from dagster_jet.operators.window import ROW_COUNT, WINDOW_END_MS
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN

DAY_MS = 86_400_000
LOAD_FILES = 10
EVERY_EPOCH, EVERY_HOUR = 0.0, 3600.0


@dataclass
class Observed:
    """Events of one run; `step_ms`: wall time between two ends of epochs."""

    snapshots: list[SnapshotCommitted] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    _ended: float = field(default_factory=time.perf_counter)

    def on_event(self, event: JobEvent) -> None:
        if isinstance(event, SnapshotCommitted):
            self.snapshots.append(event)
        elif isinstance(event, EpochCompleted):
            now = time.perf_counter()
            self.step_ms.append((now - self._ended) * 1000)
            self._ended = now


def write_input(folder: Path, keys: int, changing: int, snapshots: int) -> Path:
    """First every key once, in a few large files; then files of `changing` different keys."""
    source = folder / "in"
    source.mkdir(parents=True)
    random = np.random.default_rng(11)
    parts = list(np.split(random.permutation(keys), LOAD_FILES))
    parts += [random.choice(keys, changing, replace=False) for _ in range(snapshots)]
    for number, part in enumerate(parts):
        path = source / f"{number:06d}.json"
        path.write_text("".join([line(f"{k:09d}", T0_MS + number, 100) for k in part.tolist()]))
        set_time(path, number)
    return source


def run(folder: Path, *, quick: bool, console: Console) -> dict[str, Any]:
    """One epoch, one snapshot per file. Fractions are of the full state, written once, bare."""
    keys, snapshots = (200_000, 24) if quick else (1_000_000, 80)
    changing = keys // 100
    source = write_input(folder, keys, changing, snapshots)
    without = Observed()
    _run_job(folder / "without", source, changing, EVERY_HOUR, without)
    every = Observed()
    full_bytes, rows = _run_job(folder / "every", source, changing, EVERY_EPOCH, every)
    if rows != keys + snapshots * changing:
        raise AssertionError(f"the state holds {rows} input rows")
    changes = [s for s in every.snapshots if s.bytes_written > 0][LOAD_FILES:]
    bytes_per = [s.bytes_written for s in changes]
    result: dict[str, Any] = {
        "keys": keys,
        "changing": changing,
        "snapshots": len(changes),
        "full_state_bytes": full_bytes,
        "input_rows_in_state": rows,
        "bytes_median": statistics.median(bytes_per),
        "bytes_max": max(bytes_per),
        "share_median": statistics.median(bytes_per) / full_bytes,
        "share_max": max(bytes_per) / full_bytes,
        "chain_bytes_over_full": changes[-1].state_bytes / full_bytes,
        "epoch_ms_without_snapshot": statistics.median(without.step_ms[LOAD_FILES:]),
        "epoch_ms_with_snapshot": statistics.median(every.step_ms[LOAD_FILES:]),
        "manifest_and_record_ms": statistics.median(s.phase1_ms for s in changes),
        "phase2_ms": statistics.median(s.phase2_ms for s in changes),
    }
    table = Table("measure", "value", title="snapshot cost")
    for name, value in result.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else f"{value:,}")
    console.print(table)
    return result


def _run_job(
    folder: Path, source: Path, changing: int, interval_s: float, seen: Observed
) -> tuple[int, int]:
    """One file per epoch. Returns the bytes of the full state and the input rows behind it."""
    with jet_query.open_jet(folder / "store") as jet:
        jet.run(
            jet_query.pipeline(source, folder / "out", DAY_MS),
            jet_query.config(changing, interval_s),
            until="drained",
            on_event=seen.on_event,
        )
        state = jet.job("windowed_count").read_state("counts")
    assert state is not None
    partials = [name for name in state.column_names if re.fullmatch(r"__\w+\(.*\)", name)]
    merged = state.group_by([PARTITION_COLUMN, "k", WINDOW_END_MS]).aggregate(
        [(name, "sum") for name in [*partials, ROW_COUNT]]
    )
    return merged.nbytes, pc.sum(merged.column(f"{ROW_COUNT}_sum")).as_py()
