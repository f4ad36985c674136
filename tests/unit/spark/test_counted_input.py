"""A task with all shards counts its input, advances its watermark, and counts no row that only
carries a shard."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.snapshot.manifest import Ack, Arrived, ShardState
from dagster_jet.spark.tasks.barrier import ACK_COLUMN
from dagster_jet.spark.tasks.fused_task import FusedTask
from dagster_jet.spark.tasks.fusion import Fusion
from dagster_jet.spark.tasks.input_statistics import InputRef
from dagster_jet.spark.tasks.own_watermark import NodeTime, OwnWatermark
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.store import Store
from tests.unit.operators.stepping import addressed, as_input
from tests.unit.spark.shard import Row, Shard

REF, SHARDS, LAG_MS = InputRef("s", 0), 2, 10


def in_order() -> InEventOrder:
    """Operator whose rows wait in the state until the watermark has passed them."""
    rows = pa.schema([("k", pa.string()), ("v", pa.int64())])
    return InEventOrder(StatefulMap("s", ("k",), rows, rows, lambda _, row: row, int, None, None))


class AllShards(Shard):
    """One task runs all shards."""

    states: tuple[ShardState, ...] = (ShardState(),) * SHARDS

    def epoch_of(self, rows: list[Row], after_ms: int | None = None) -> list[Ack]:
        self.epoch += 1
        own = OwnWatermark((NodeTime(REF, LAG_MS, 0, (None, False)),), None) if rows else None
        given = StageInput(self.states, None, after_ms, None, own_watermark=own)
        spec = StageSpec("s", self.operator, counted_inputs=(0,))
        barrier, fusion = self._barrier(False), Fusion((spec,), (REF,))
        task = FusedTask(barrier, fusion, {"s": given}, owns_all=True, has_input=bool(rows))
        (schema,) = self.operator.input_schemas
        table = as_input(rows, schema) if rows else pa.table({"id": pa.array([0], pa.int32())})
        told = [one for b in task(iter(table.to_batches())) for one in b.column(ACK_COLUMN)]
        acks = [Ack.from_bytes(one.as_py()) for one in told]
        self.states = tuple(s.after_epoch(a) for s, a in zip(self.states, acks, strict=True))
        return acks


@pytest.fixture
def stage(store: Store, tmp_path: Path) -> AllShards:
    return AllShards(store, tmp_path, in_order())


def test_its_own_rows_advance_its_watermark(stage: AllShards) -> None:
    rows = [addressed(time, {"k": key}, v=1) for time, key in ((5, "a"), (30, "b"), (12, "c"))]
    acks = stage.epoch_of(rows)
    assert [ack.arrived for ack in acks] == [(Arrived(3, 3, 30),), ()]
    assert {ack.watermark_ms for ack in acks} == {20}
    assert sum(ack.rows_out for ack in acks) == 2, "those before 20"
    assert sum(ack.rows_out for ack in stage.epoch_of([], FINAL_WATERMARK_MS)) == 1, "the rest"


def test_a_row_without_event_time_refuses_the_epoch(stage: AllShards) -> None:
    rows = [addressed(5, {"k": "a"}, v=1), addressed(None, {"k": "b"}, v=1)]
    acks = stage.epoch_of(rows)
    assert acks[0].arrived == (Arrived(2, 1, 5),)
    assert [(ack.rows_in, ack.rows_out) for ack in acks] == [(0, 0)] * SHARDS
