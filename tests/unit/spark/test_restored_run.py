"""A restored shard is one run: the first epoch would merge several, and write all state again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dagster_jet import aggregates as agg
from dagster_jet.spark.tasks import restore_task
from dagster_jet.store import Store
from tests.unit.operators.session_stage import SessionStage
from tests.unit.operators.stepping import PARTITIONS
from tests.unit.spark.shard import Shard

KEYS = 40


def test_many_portions_are_restored_as_one_run_in_bounded_batches(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_task, "ROWS_AT_ONCE", 2)
    stage = SessionStage(100, n=agg.count())
    shard = Shard(store, tmp_path, stage.operator)
    stage.watermark = None
    rows = stage.first_stage([(f"k{n}", n, n) for n in range(KEYS)]).to_pylist()
    shard.step([{**row, "__partition": row["__hash"] % PARTITIONS} for row in rows], watermark=0)
    shard.restart()
    (run,) = shard.state.runs
    assert run.rows == KEYS
    with pa.memory_map(run.path) as source:
        assert pa.ipc.open_file(source).num_record_batches == PARTITIONS
    found = shard.step([], watermark=10_000)
    assert sorted((row["k"], row["n"]) for row in found) == sorted(
        (f"k{n}", 1) for n in range(KEYS)
    )
