"""Cost of a restore after the number of shards has changed, by that number: CPU of its tasks.

No Spark: the tasks run here, one after the other, on a real store of two folders. Every shard has a
chain of 16 chunk sets of a few rows, so that what is measured is how many chains are opened.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN, ChunkSetName, write_chunk_set
from dagster_jet.spark.restore import needed_chains
from dagster_jet.spark.tasks.barrier import Barrier, owned_partitions
from dagster_jet.spark.tasks.restore_task import RestoreItem, RestoreTask
from dagster_jet.store import Store, StoreConfig

PARTITIONS = 271
SHARDS = ((34, 25), (68, 50), (135, 100), (271, 200))
SETS = 16
ROWS = 2
"""Rows per partition in each set."""
_JOB, _STAGE = "j", "s"

Chains = tuple[tuple[ChunkSet, ...], ...]


def run(*, quick: bool, console: Console) -> dict[str, Any]:
    """Prints the curve."""
    operator = Deduplicate(("k",), pa.schema([("k", pa.int64())]), 1000)
    costs = []
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for before, now in SHARDS[:2] if quick else SHARDS:
        with tempfile.TemporaryDirectory(dir=place, prefix="jet-restore-") as folder:
            urls = tuple(f"file://{folder}/member-{m}" for m in "ab")
            store = Store.open(StoreConfig(urls, partition_count=PARTITIONS))
            try:
                barrier = Barrier(
                    _JOB, 1, 1, SETS, None, f"{folder}/work", PARTITIONS, store.handle()
                )
                old = _chains(store, barrier, operator, before)
                same = _restore_s(barrier, operator, old, before)
                other = _restore_s(barrier, operator, old, now)
            finally:
                store.close()
        costs.append({"before": before, "now": now, "same_s": same, "other_s": other})
    table = Table(title=f"CPU seconds of a restore; chains of {SETS} sets")
    for column in ("shards", "at as many", "then", "at that many", "ratio", "ms per chain"):
        table.add_column(column, justify="right")
    for c in costs:
        table.add_row(
            str(c["before"]),
            f"{c['same_s']:.2f}",
            str(c["now"]),
            f"{c['other_s']:.2f}",
            f"{c['other_s'] / c['same_s']:.2f}",
            f"{1000 * c['other_s'] / c['before']:.1f}",
        )
    console.print(table)
    return {"costs": costs}


def _chains(store: Store, barrier: Barrier, operator: Deduplicate, shards: int) -> Chains:
    chunks = store.map(barrier.chunk_map_name())
    return tuple(
        tuple(_chunk_set(chunks, operator, shard, shards, number) for number in range(SETS))
        for shard in range(shards)
    )


def _chunk_set(
    chunks: Any, operator: Deduplicate, shard: int, shards: int, number: int
) -> ChunkSet:
    partitions = [p for p in owned_partitions(shard, shards, PARTITIONS) for _ in range(ROWS)]
    columns = {
        name: pa.array([number * ROWS + n for n in range(len(partitions))], pa.int64())
        for name in operator.state_schema.names
    }
    table = pa.table({**columns, PARTITION_COLUMN: pa.array(partitions, pa.int32())})
    return write_chunk_set(
        chunks,
        ChunkSetName(_STAGE, number + 1, 1, shard, "a"),
        table,
        frozenset(partitions) if number == 0 else (),
        sequence=number,
        is_base=number == 0,
        partition_count=PARTITIONS,
    )


def _restore_s(barrier: Barrier, operator: Deduplicate, old: Chains, now: int) -> float:
    """CPU seconds to make the task as the driver does, and to get and run it as each task does."""
    began = time.process_time()
    items = tuple(
        (
            RestoreItem(
                _STAGE,
                shard,
                operator,
                needed_chains(old, shard, now, PARTITIONS, operator),
                len(old),
                now,
                None,
            ),
        )
        for shard in range(now)
    )
    pickled = pickle.dumps(RestoreTask(barrier, items))
    for shard in range(now):
        task = pickle.loads(pickled)
        shards = pa.record_batch([pa.array([shard], pa.int32())], ["shard"])
        for _ in task(iter([shards])):
            pass
    return time.process_time() - began
