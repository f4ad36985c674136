"""The steps of a small snapshot, one after the other, without Spark: a chunk set of 1,000 rows, the
manifest, the record, the commit of one file, the note."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.store_places import Folders, Servers, places_of
from benchmarks.store_requests import bucket, requests_between
from dagster_jet import sinks
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.operators.operator import HASH_COLUMN, PARTITION_COLUMN
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.protocol import Purpose
from dagster_jet.snapshot.storage.chunks import ChunkSetName, write_chunk_set
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig

STEPS = ("state", "manifest", "record", "commit", "note")
ROWS, WARM_UP = 1_000, 10


def run(folder: Path, *, snapshots: int, console: Console) -> dict[str, Any]:
    """Milliseconds by step on folders and Redis, and requests by step on S3."""
    result: dict[str, Any] = {"load": os.getloadavg()[0], "snapshots": snapshots}
    table = Table("step", "folders ms", "p90", "fsyncs", "redis ms", "p90", "S3 requests")
    for kind in (Folders.kind, Servers.kind):
        with places_of(kind, folder / kind) as places:
            places.clear()
            config = StoreConfig(places.urls)
            result[kind] = _measure(config, folder / f"out-{kind}", snapshots)
    with bucket() as (url, server):
        config = StoreConfig((url,), backup_count=0)
        seen: dict[str, Any] = {}

        def note(step: str, begun: dict[str, int]) -> None:
            seen[step] = requests_between(begun, server.requests())

        _measure(config, folder / "out-s3", 1, server.requests, note)
        result["s3"] = seen
    for step in STEPS:
        ours, theirs = result[Folders.kind][step], result[Servers.kind][step]
        table.add_row(
            step,
            *(f"{ours[name]:.1f}" for name in ("ms", "p90_ms", "fsyncs")),
            *(f"{theirs[name]:.1f}" for name in ("ms", "p90_ms")),
            " ".join(f"{n} {method}" for method, n in result["s3"][step].items()),
        )
    console.print(table)
    return result


def _measure(
    config: StoreConfig,
    output: Path,
    snapshots: int,
    before: Callable[[], Any] = lambda: None,
    after: Callable[[str, Any], None] = lambda *_: None,
) -> dict[str, dict[str, float]]:
    took: dict[str, list[float]] = {step: [] for step in STEPS}
    synced: dict[str, list[int]] = {step: [] for step in STEPS}

    @contextmanager
    def step(name: str) -> Iterator[None]:
        begun, count, began = before(), syncs.count, time.perf_counter()
        yield
        took[name].append((time.perf_counter() - began) * 1000)
        synced[name].append(syncs.count - count)
        after(name, begun)

    with _Syncs() as syncs, Store.open(config) as store:
        keeper = RecordKeeper(store, "j", 30_000, None)
        record = keeper.claim(change=None)
        manifests, sink = SnapshotStore(store, "j"), sinks.files(str(output), format="json")
        sink.claim_place("j", "out")
        table, chain = _state(store.partition_count), ()
        chunks = store.handle().map(manifests.map_name)  # as tasks have it
        for number in range(1, snapshots + WARM_UP + 1):
            execution = record.execution_id
            transaction = TransactionId("j", "out", 1, execution, number, 0, "a")
            writer = sink.open_writer(transaction)
            writer.write(pa.RecordBatch.from_pydict({"k": ["key"] * ROWS}))
            artifacts = writer.prepare()
            name = ChunkSetName("counts", number, execution, 0, "a")
            with step("state"):
                written = write_chunk_set(
                    chunks,
                    name,
                    table,
                    (),
                    sequence=number,
                    is_base=False,
                    partition_count=store.partition_count,
                )
            chain = (*chain, written)[-64:]
            manifest = Manifest(
                "j", number, number, execution, 1, "plan", store.partition_count,
                {"rows": {"files": number}}, {}, {"counts": (chain,)}, tuple(artifacts),
            )  # fmt: skip
            with step("manifest"):
                ref = manifest.ref(manifests.write(manifest), number)
            record = record.with_snapshot(ref, 3)
            with step("record"):
                keeper.write(record, Purpose.SNAPSHOT)
            with step("commit"):
                sink.open_committer("j", "out").commit(
                    artifacts, CommitContext("j", "out", 1, execution, recovering=False)
                )
            record = record.with_note(number)
            with step("note"):
                keeper.write(record, Purpose.COMMITTED)
        keeper.release(record)
    return {
        name: {
            "ms": statistics.median(values[WARM_UP:]),
            "p90_ms": sorted(values[WARM_UP:])[int(0.9 * (len(values) - WARM_UP))],
            "fsyncs": statistics.median(synced[name][WARM_UP:]),
        }
        for name, values in took.items()
    }


class _Syncs:
    """Counts this process's calls of `os.fsync`; LMDB's own are not seen."""

    count = 0

    def __enter__(self) -> _Syncs:
        self._original = original = os.fsync

        def fsync(descriptor: Any) -> None:
            self.count += 1
            original(descriptor)

        os.fsync = fsync
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync = self._original


def _state(partition_count: int) -> pa.Table:
    hashes = np.random.default_rng(7).integers(0, 1 << 60, ROWS)
    columns = {
        PARTITION_COLUMN: pa.array((hashes % partition_count).astype(np.int32)),
        HASH_COLUMN: pa.array(hashes),
        "n": pa.array(np.arange(ROWS)),
    }
    return pa.table(columns).sort_by([(PARTITION_COLUMN, "ascending"), (HASH_COLUMN, "ascending")])
