"""The cost of a snapshot follows what changed, not what is stored."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.core.window_frames import Frames
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.window import WINDOW_END_MS, SlidingWindows
from dagster_jet.snapshot.manifest import ShardState
from dagster_jet.snapshot.storage.chains import read_chain
from dagster_jet.snapshot.storage.chunks import ROTATION
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.spark.tasks.stage_task import StageTask
from dagster_jet.store import Store, StoreConfig
from tests.long import long

from .world import World

KEYS, CHANGED, EPOCHS = 1_000_000, 10_000, 13
_LONGS = ("k", WINDOW_END_MS, "__sum(v)", "__rows")
STATE = pa.schema([("__partition", pa.int32()), *((name, pa.int64()) for name in _LONGS)])


def groups(keys: np.ndarray) -> pa.Table:
    """Rows as the JVM would send them: one per key of one window that stays open."""
    ones = np.ones(len(keys), np.int64)
    partition = ((keys * 2_654_435_761) % 2**32 % 271).astype(np.int32)
    columns = [partition, keys, ones * 1_000, keys % 97, ones]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=STATE)


@long
def test_bytes_per_snapshot_over_many_snapshots(tmp_path: Path) -> None:
    """A shard with 1 M keys of which 1 % change from snapshot to snapshot, right in the task."""
    config = StoreConfig(tuple(f"file://{tmp_path}/{m}" for m in "abc"), 1, 271, "default")
    aggregation = Aggregation((("s", agg.sum("v")),))
    operator = SlidingWindows(STATE, ("k",), Frames(1_000, 1_000), aggregation)
    rng = np.random.default_rng(1)
    changes = [rng.choice(KEYS, CHANGED, replace=False) for _ in range(2 * ROTATION + 10)]
    expected = np.arange(KEYS) % 97
    with Store.open(config) as store, ThreadPoolExecutor(1) as savers:
        state, written, chain_lengths = ShardState(), [], []
        for number, keys in enumerate([np.arange(KEYS), *changes]):
            if number:
                expected[keys] += keys % 97
            task = StageTask(
                barrier=Barrier(
                    "cost", 1, 1, number, number, str(tmp_path / "work"), 271, store.handle()
                ),
                stage=StageSpec("counts", operator),
                given=StageInput((state,), before_ms=None, after_ms=None, expired_until_ms=None),
            )
            ack = task.run_shard(0, (groups(keys),), str(number), savers).acked()
            assert ack.chunk_set is not None and ack.snapshot_error is None
            for path in ack.obsolete:
                Path(path).unlink(missing_ok=True)
            state = state.after_epoch(ack).at_barrier().after_snapshot(ack)
            written.append(ack.chunk_set.bytes)
            chain_lengths.append(len(state.chain))
        full, rest = written[0], written[1:]
        assert max(rest) <= 0.05 * full, f"{max(rest) / full:.1%} of the state in one snapshot"
        assert max(chain_lengths) <= ROTATION + 1, "old sets are never let go"
        live = sum(chunk_set.bytes for chunk_set in state.chain)
        assert live <= 3 * full, f"the store holds {live / full:.1f} times the state"
        table = read_chain(
            store.map("jobs/cost/state"), state.chain, vertex="counts", partition_count=271
        )
        assert table is not None
        merged = operator.merge([table])
        found = np.zeros(KEYS, np.int64)
        found[merged.column("k").to_numpy()] = merged.column("__sum(v)").to_numpy()
        assert np.array_equal(found, expected), "the chain does not add up to the state"


@long
def test_bytes_per_snapshot_on_spark(world: World) -> None:
    """The same end to end: one file per epoch, every other epoch a snapshot."""
    folder = world.folder / "in"
    folder.mkdir()
    rng = np.random.default_rng(2)
    every = np.arange(KEYS)
    changes = (rng.choice(KEYS, CHANGED // 2) for _ in range(EPOCHS))
    for number, keys in enumerate([every, *changes]):
        columns = {"k": keys, "ts": np.full(len(keys), number), "v": keys % 7}
        pa.parquet.write_table(pa.table(columns), folder / f"{number}.parquet")
    p = Pipeline("cost")
    rows = p.read_from(
        sources.files(str(folder), format="parquet", schema="k long, ts long, v long"), name="rows"
    ).with_timestamps("ts")
    rows.group_by("k").window(windows.tumbling("1 hour")).aggregate(
        n=agg.count(), total=agg.sum("v"), name="counts"
    ).write_to(sinks.files(f"{world.folder}/out", format="parquet"), name="out")
    with world.jet() as jet:
        config = JobConfig(max_items_per_epoch=1, snapshot_interval="0 ms")
        jet.run(p, config, until="drained", on_event=world.events.append)
        assert_state_is_whole(jet)
    first, *rest = [e.bytes_written for e in world.events_of(SnapshotCommitted)]
    assert len(rest) >= 6
    assert max(rest) <= 0.05 * first, Counter(f"{b / first:.1%}" for b in rest)


def assert_state_is_whole(jet: Jet) -> None:
    state = jet.job("cost").read_state("counts")
    assert state is not None
    assert sum(state.column("__rows").to_pylist()) == KEYS + EPOCHS * (CHANGED // 2)
