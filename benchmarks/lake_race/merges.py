"""Upserts into a large table: keys drawn at random, so that each file has some of them.

A job reads files of changes, one run for each size, at default settings. After each run the whole
table is compared with what it must hold.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from rich.console import Console

from benchmarks.interleaved import cpu_loop_ms
from benchmarks.kafka_race.ours import open_jet
from benchmarks.lake_race.ours import TABLE, catalog_at
from benchmarks.oracle import WrongOutputError
from dagster_jet import Pipeline, sinks, sources
from dagster_jet.execution.events import JobEvent, SnapshotCommitted

ROWS = 10_000_000
KEYS = (1_000, 100_000, 1_000_000)
FILES = 20
_SEED = 20_261_129


@dataclass(frozen=True)
class Merge:
    """One run of changes."""

    table: str
    rows: int
    """Rows of the table."""
    keys: int
    commits: int
    """Number of snapshots that the changes came in."""
    merge_s: float
    """Duration of phase 2, of all snapshots together."""
    run_s: float
    """Seconds from the call to the end of the job, with Spark running."""


def measured(folder: Path, rows: int, console: Console) -> dict[str, Any]:
    """Returns the figures of both tables.

    Raises:
        WrongOutputError: a table does not hold its rows.
    """
    found, load = [], os.getloadavg()[0]
    for table in ("Delta Lake", "Iceberg"):
        place = folder / table.split()[0].lower()
        for one in _of_table(table, place, rows):
            console.print(
                f"{table}, {one.keys:,} keys into {one.rows:,} rows: {one.merge_s:.1f} s in "
                f"{one.commits} commit(s), whole run {one.run_s:.1f} s"
            )
            found.append(one)
        shutil.rmtree(place)
    return {"load": load, "loop_ms": cpu_loop_ms(), "merges": [asdict(one) for one in found]}


def _of_table(table: str, folder: Path, rows: int) -> Iterator[Merge]:
    changes, draw = folder / "in", np.random.default_rng(_SEED)
    changes.mkdir(parents=True)
    values = np.zeros(rows, np.int64)
    batches = [
        pa.table({"id": ids, "v": np.zeros(len(ids), np.int64), "s": [f"row {n}" for n in ids]})
        for ids in np.array_split(draw.permutation(rows), FILES)
    ]
    if table == "Iceberg":
        sink: Any = sinks.iceberg(
            "lake", TABLE, mode="upsert", key="id", order_by="v", catalog_options=_catalog(folder)
        )
        with closing(load_catalog("lake", **_catalog(folder))) as catalog:
            catalog.create_namespace_if_not_exists(TABLE.split(".")[0])
            made = catalog.create_table(TABLE, batches[0].schema)
            for batch in batches:
                made.append(batch)
    else:
        sink = sinks.delta(str(folder / "out"), mode="upsert", key="id", order_by="v")
        for batch in batches:
            deltalake.write_deltalake(folder / "out", batch, mode="append")
    job = Pipeline("merges")
    schema = "id long, v long, s string"
    source = sources.files(str(changes), format="parquet", schema=schema)
    job.read_from(source, name="rows").write_to(sink, name="out")
    with open_jet(folder) as jet:
        for number, keys in enumerate((k for k in KEYS if k <= rows), 1):
            ids = draw.choice(rows, keys, replace=False)
            values[ids] = number
            new = pa.table({"id": ids, "v": values[ids], "s": [f"row {n}" for n in ids]})
            pq.write_table(new, changes / f"{number}.parquet")
            phase2_ms: list[float] = []

            def on_event(event: JobEvent, phase2_ms: list[float] = phase2_ms) -> None:
                if isinstance(event, SnapshotCommitted) and event.outputs:
                    phase2_ms.append(event.phase2_ms)

            began = time.monotonic()
            jet.run(job, until="drained", on_event=on_event)
            run_s = time.monotonic() - began
            _check(table, folder, values)
            yield Merge(table, rows, keys, len(phase2_ms), sum(phase2_ms) / 1000, run_s)


def _catalog(folder: Path) -> dict[str, str]:
    return catalog_at(str(folder))


def _check(table: str, folder: Path, values: np.ndarray) -> None:
    if table == "Iceberg":
        with closing(load_catalog("lake", **_catalog(folder))) as catalog:
            found = catalog.load_table(TABLE).scan(selected_fields=("id", "v")).to_arrow()
    else:
        found = deltalake.DeltaTable(folder / "out").to_pyarrow_table(columns=["id", "v"])
    ids = found.column("id").to_numpy()
    order = np.argsort(ids)
    is_right = np.array_equal(ids[order], np.arange(len(values))) and np.array_equal(
        found.column("v").to_numpy()[order], values
    )
    if not is_right:
        raise WrongOutputError(f"{table} does not hold its {len(values):,} rows.")
