"""Entries of a processor under broadcast keys: one chunk when one changes, and every instance of
another parallelism is given those of all instances there were."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_jet.dag import Inbox, Processor, broadcast_key
from dagster_jet.operators.user.spark_processor import (
    SparkProcessor,
)
from dagster_jet.snapshot.manifest import Ack, ChunkSet, ShardState
from dagster_jet.spark.restore import needed_chains
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.restore_task import RestoreItem, RestoreTask, restored_state
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.spark.tasks.stage_task import StageTask
from dagster_jet.store import Store
from tests.unit.operators.stepping import PARTITIONS, addressed, as_input

ROWS = pa.schema([("k", pa.string())])
SEEN = pa.schema([("index", pa.int64()), ("key", pa.string()), ("count", pa.int64())])
INSTANCES = {(f"of {number}", 1) for number in range(3)}


class Counting(Processor):
    """Tells what it was given back, and saves how often it was."""

    def __init__(self) -> None:
        self.given: dict[str, int] = {}

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        inbox.drain()
        index = self.context.index
        for key, count in self.given.items():
            self.outbox.offer({"index": index, "key": key, "count": count})
        self.given = {f"of {index}": self.given.get(f"of {index}", 0) + 1}
        return True

    def save_to_snapshot(self) -> bool:
        entries = [(broadcast_key(key), count) for key, count in self.given.items()]
        return all(self.outbox.offer_to_snapshot(*entry) for entry in entries)

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        for key, count in inbox.drain():
            assert self.given.setdefault(key.key, count) == count, "given twice, and differently"
        return True


class Stage:
    def __init__(self, store: Store, folder: Path, keys: tuple[str, ...] = ("k",)) -> None:
        self.store, self.folder, self.epoch = store, folder, 0
        self.operator = SparkProcessor("s", Counting, ROWS, SEEN, keys, False, PARTITIONS)
        self.states: list[ShardState] = []

    def restart(self, shards: int, chains: Sequence[tuple[ChunkSet, ...]] | None = None) -> None:
        old = tuple(chains or [state.chain for state in self.states])
        same = len(old) == shards
        items = tuple(
            (
                RestoreItem(
                    "s",
                    n,
                    self.operator,
                    needed_chains(old, n, shards, PARTITIONS, self.operator),
                    len(old),
                    shards,
                    None,
                ),
            )
            for n in range(shards)
        )
        numbers = pa.record_batch([pa.array(range(shards), pa.int32())], ["shard"])
        acks = [
            Ack.from_bytes(batch.column(0)[0].as_py())
            for batch in RestoreTask(self._barrier(), items)(iter([numbers]))
        ]
        self.states = [restored_state(a, old[a.shard] if same else ()) for a in acks]

    def step(self) -> tuple[set[tuple[int, str, int]], list[ChunkSet]]:
        """A row for everybody. What the instances were given, and what they have saved."""
        self.epoch += 1
        seen, saved = set(), []
        (schema,) = self.operator.input_schemas
        given = StageInput(tuple(self.states), None, None, None)
        task = StageTask(self._barrier(), StageSpec("s", self.operator), given)
        rows = as_input([addressed(0, {"k": "any"})], schema)
        with ThreadPoolExecutor(1) as savers:
            for shard, state in enumerate(self.states):
                run = task.run_shard(shard, (rows,), f"{self.epoch}-{shard}", savers)
                ack = run.acked()
                seen |= {tuple(row.values()) for row in run.step.results.to_pylist()}
                self.states[shard] = state.after_epoch(ack).at_barrier().after_snapshot(ack)
                saved += [ack.chunk_set] if ack.chunk_set else []
        return seen, saved

    def _barrier(self) -> Barrier:
        work = str(self.folder / "work" / f"{self.epoch}")
        handle = self.store.handle()
        return Barrier("j", 1, 1, self.epoch, self.epoch, work, PARTITIONS, handle)


@pytest.mark.parametrize("shards", [1, 2, 6])
def test_every_instance_of_another_parallelism_is_given_those_of_all(
    store: Store, tmp_path: Path, shards: int
) -> None:
    stage = Stage(store, tmp_path)
    stage.states = [ShardState()] * 3
    assert stage.step()[0] == set()
    stage.restart(shards)
    seen, _ = stage.step()
    assert seen == {(index, *entry) for index in range(shards) for entry in INSTANCES}
    for _ in range(3):
        seen, sets = stage.step()
        assert [chunk_set.chunks for chunk_set in sets] == [1] * shards
    stage.restart(shards)
    seen, _ = stage.step()
    own = {(n, f"of {n}", 5 if n < 3 else 4) for n in range(shards)}
    assert seen == own, "it saves nobody else's"
