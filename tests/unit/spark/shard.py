"""The one shard of a stage, driven right in its tasks: steps, snapshots, restarts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_jet.operators.operator import Operator
from dagster_jet.snapshot.manifest import Ack, ShardState
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.restore_task import RestoreItem, RestoreTask, restored_state
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.spark.tasks.stage_task import StageTask
from dagster_jet.store import Store
from tests.unit.operators.stepping import PARTITIONS, as_input

Row = dict[str, Any]


class Shard:
    """Every epoch ends in a snapshot, if it is not told otherwise."""

    def __init__(self, store: Store, folder: Path, operator: Operator) -> None:
        self.store, self.folder, self.operator = store, folder, operator
        self.state = ShardState()
        self.epoch = 0
        self.watermark: int | None = None
        self.dead: int | None = None
        self.written_bytes = 0
        """Bytes of chunks over all snapshots."""

    def step(
        self, *arrived: list[Row], watermark: int, saves: bool = True, fails: bool = False
    ) -> list[Row]:
        """
        Args:
            saves: the epoch ends in a snapshot.
            fails: which is never decided.
        """
        self.epoch += 1
        given = StageInput((self.state,), self.watermark, watermark, self.dead)
        task = StageTask(self._barrier(saves), StageSpec("s", self.operator), given)
        schemas = self.operator.input_schemas
        tables = tuple(map(as_input, arrived, schemas))
        with ThreadPoolExecutor(1) as savers:
            run = task.run_shard(0, tables, f"{self.epoch}", savers)
            ack = run.acked()
        assert ack.snapshot_error is None
        self.written_bytes += ack.chunk_set.bytes if ack.chunk_set else 0
        self.state = self.state.after_epoch(ack)
        if saves:
            begun = self.state.at_barrier()
            self.state = begun.after_failure() if fails else begun.after_snapshot(ack)
        self.watermark, dead = watermark, self.operator.expired_until(watermark)
        self.dead = dead if self.dead is None or dead is None else max(self.dead, dead)
        return run.step.results.to_pylist()

    def restart(self, operator: Operator | None = None) -> None:
        """Goes on from the last snapshot."""
        self.operator, chain = operator or self.operator, self.state.chain
        item = RestoreItem("s", 0, self.operator, (chain,), 1, 1, self.dead)
        shards = pa.record_batch([pa.array([0], pa.int32())], ["shard"])
        (batch,) = RestoreTask(self._barrier(True), ((item,),))(iter([shards]))
        self.state = restored_state(Ack.from_bytes(batch.column(0)[0].as_py()), chain)

    @property
    def run_rows(self) -> int:
        return sum(run.rows for run in self.state.runs)

    def _barrier(self, saves: bool) -> Barrier:
        work = self.folder / "work" / f"{self.epoch}"
        return Barrier(
            "j", 1, 1, self.epoch, self.epoch if saves else None, str(work), PARTITIONS,
            self.store.handle(),
        )  # fmt: skip
