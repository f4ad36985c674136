"""What a snapshot writes when little changes: 1 M keys of state, 1 % of them per snapshot."""

from __future__ import annotations

import statistics
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks import jet_query
from benchmarks.data import T0_MS, _line, _set_time
from dagster_jet import Jet
from dagster_jet.engine.events import JobEvent, SnapshotCommitted
from dagster_jet.processors.window import ROW_COUNT, WINDOW_END_MS

DAY_MS = 86_400_000
LOAD_FILES = 10


def write_input(folder: Path, keys: int, changing: int, snapshots: int) -> Path:
    """First every key once, in a few large files; then files of `changing` different keys."""
    source = folder / "in"
    source.mkdir(parents=True)
    random = np.random.default_rng(11)
    parts = list(np.split(random.permutation(keys), LOAD_FILES))
    parts += [random.choice(keys, changing, replace=False) for _ in range(snapshots)]
    for number, part in enumerate(parts):
        path = source / f"{number:06d}.json"
        path.write_text("".join([_line(f"{k:09d}", T0_MS + number, 100) for k in part.tolist()]))
        _set_time(path, number)
    return source


def run(folder: Path, *, quick: bool, console: Console) -> dict[str, Any]:
    """One epoch, one snapshot per file. Fractions are of the full state, written once, bare."""
    keys, snapshots = (200_000, 24) if quick else (1_000_000, 80)
    changing = keys // 100
    source = write_input(folder, keys, changing, snapshots)
    seen: list[SnapshotCommitted] = []

    def on_event(event: JobEvent) -> None:
        if isinstance(event, SnapshotCommitted):
            seen.append(event)

    with jet_query.open_jet(folder / "store") as jet:
        jet.run(
            jet_query.pipeline(source, folder / "out", DAY_MS),
            jet_query.config(changing, snapshot_seconds=timedelta(0).total_seconds()),
            until="drained",
            on_event=on_event,
        )
        full_bytes, rows = _full_state(jet, keys, LOAD_FILES * (keys // LOAD_FILES), snapshots)
    changes = [s for s in seen if s.bytes_written > 0][LOAD_FILES:]
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
        "phase1_ms_median": statistics.median(s.phase1_ms for s in changes),
        "phase2_ms_median": statistics.median(s.phase2_ms for s in changes),
    }
    table = Table("measure", "value", title="snapshot cost")
    for name, value in result.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else f"{value:,}")
    console.print(table)
    return result


def _full_state(jet: Jet, keys: int, loaded: int, snapshots: int) -> tuple[int, int]:
    """Bytes of the state as one row per key, after checking that every row is in it."""
    state = jet.read_state("windowed_count", "counts")
    assert state is not None
    expected = loaded + snapshots * (keys // 100)
    sums = [(name, "sum") for name in state.column_names if name.startswith("__p")]
    sums = [s for s in sums if s[0] != "__partition"]
    merged = state.group_by(["__partition", "k", WINDOW_END_MS]).aggregate(
        [*sums, (ROW_COUNT, "sum")]
    )
    rows = pa.compute.sum(merged.column(f"{ROW_COUNT}_sum")).as_py()
    if merged.num_rows != keys or rows != expected:
        raise AssertionError(f"state has {merged.num_rows} keys, {rows} rows; expected {expected}")
    return merged.nbytes, rows
