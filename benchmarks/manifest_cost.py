"""Cost of a snapshot's manifest by the number of shards: the loop's thread, and the writer's.

No Spark, no store. Each shard has a chain of 64 chunk sets. In every snapshot so many shards have
changed; what the others have is in the manifest, too.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.snapshot.ending import Ending
from dagster_jet.snapshot.job_state import CoordinatorConfig, JobState
from dagster_jet.snapshot.manifest import Ack, ChunkSet, ChunkSetTexts, ShardState, checksum
from dagster_jet.snapshot.pending_snapshot import PendingSnapshot
from dagster_jet.snapshot.protocol import (
    Decide,
    Decided,
    WriteOutcome,
)
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from dagster_jet.snapshot.storage.chunks import ROTATION, ChunkSetName
from dagster_jet.spark.tasks.stage_input import StageInput

STAGES = ("hourly", "sessions", "join")
SHARDS = (8, 34, 68, 135, 271)
CHANGED = (3, None)
"""Shards of each stage that have changed; None: all of them."""


@dataclass(frozen=True)
class Cost:
    """Milliseconds of CPU per snapshot, medians."""

    shards: int
    changed: int
    sets: int
    first_ms: float
    """The first manifest of an execution, encoded."""
    encode_ms: float
    loop_ms: float
    task_ms: float
    """Time of one of the tasks to get its shard's state out of the epoch's parameters."""
    bytes: int


def run(*, quick: bool, console: Console) -> dict[str, Any]:
    """Prints the curve."""
    shards = SHARDS[:3] if quick else SHARDS
    costs = [
        measure(number, number if changed is None else changed, 5 if quick else 20)
        for changed in CHANGED
        for number in shards
    ]
    table = Table(title=f"A manifest of {len(STAGES)} stages")
    for column in (
        "shards",
        "changed",
        "chunk sets",
        "MB",
        "first ms",
        "encode ms",
        "loop ms",
        "task ms",
    ):
        table.add_column(column, justify="right")
    for c in costs:
        figures = (c.bytes / 1e6, c.first_ms, c.encode_ms, c.loop_ms, c.task_ms)
        table.add_row(
            str(c.shards), str(c.changed), str(c.sets), *(f"{value:.2f}" for value in figures)
        )
    console.print(table)
    return {"costs": [vars(cost) for cost in costs]}


def measure(shards: int, changed: int, snapshots: int) -> Cost:
    """The costs of some snapshots one after the other, by the coordinator's own machine."""
    config = CoordinatorConfig(
        "j", Guarantee.EXACTLY_ONCE, 0, 3, dict.fromkeys(STAGES, shards), 271, "v1"
    )
    job = JobState(config, Ending())
    job.record = ExecutionRecord("j", 1, JobStatus.RUNNING, reserved_snapshot_id=10**9)
    job.shards = {
        stage: [
            ShardState(chain=tuple(_set(stage, shard, n) for n in range(ROTATION)))
            for shard in range(shards)
        ]
        for stage in STAGES
    }
    pending, texts = PendingSnapshot(job), ChunkSetTexts()
    loop_ms, encode_ms, size, sets = [], [], 0, 0
    for snapshot_id in range(ROTATION, ROTATION + snapshots + 1):
        acks = tuple(
            Ack(stage, s, "a", chunk_set=_set(stage, s, snapshot_id), chain_dropped=1)
            for stage in STAGES
            for s in range(changed)
        )
        began = time.thread_time()
        (command,) = pending.begin(acks, 0, completed=False, snapshot_id=snapshot_id)
        begun = time.thread_time()
        assert isinstance(command, Decide)
        manifest = command.manifest.with_saved(acks)
        data = manifest.to_bytes(texts)
        record = command.record.with_snapshot(manifest.ref(checksum(data), 0), 3)
        encoded = time.thread_time()
        pending.on_decided(Decided(manifest, acks, record, WriteOutcome.WRITTEN, 0))
        decided = time.thread_time()
        loop_ms.append((begun - began + decided - encoded) * 1000)
        encode_ms.append((encoded - begun) * 1000)
        size = len(data)
        sets = sum(len(chain) for chains in manifest.shards.values() for chain in chains)
    return Cost(
        shards,
        changed,
        sets,
        encode_ms[0],
        statistics.median(encode_ms[1:]),
        statistics.median(loop_ms[1:]),
        _task_ms(job.shards[STAGES[0]]),
        size,
    )


def _task_ms(shards: Sequence[ShardState]) -> float:
    data = pickle.dumps(StageInput(tuple(shards), None, None, None), pickle.HIGHEST_PROTOCOL)
    began = time.thread_time()
    for _ in range(10):
        assert pickle.loads(data).shards[0].chain
    return (time.thread_time() - began) * 100


def _set(stage: str, shard: int, number: int) -> ChunkSet:
    name = ChunkSetName(stage, number, 1, shard, f"{shard}-0")
    return ChunkSet(str(name), 2**63 + number, 3, 1000 + shard, 50_000 + number, number)
