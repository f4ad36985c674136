"""Sessions whose aggregates grow with their rows: what a touch writes is what has come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import aggregates as agg
from dagster_jet.operators import session as session_module
from dagster_jet.operators.operator import VERSION_COLUMN
from dagster_jet.operators.session import SessionWindows
from dagster_jet.operators.session_pieces import SINCE_COLUMN
from dagster_jet.snapshot.manifest import ShardState
from dagster_jet.snapshot.storage.chunks import ChunkSetName, write_chunk_set
from dagster_jet.store import Store
from tests.unit.operators.session_stage import SessionStage
from tests.unit.operators.stepping import PARTITIONS
from tests.unit.spark.shard import Shard

GAP = 100
Event = tuple[str, int, int]


def stage() -> SessionStage:
    return SessionStage(GAP, n=agg.count(), all=agg.collect_list("v"))


def arrived(of: SessionStage, events: list[Event], watermark: int | None = None) -> list[Any]:
    of.watermark = watermark
    rows = of.first_stage(events).to_pylist()
    return [{**row, "__partition": row["__hash"] % PARTITIONS} for row in rows]


def session(k: str, events: list[Event]) -> tuple[str, list[int]]:
    return k, sorted(v for key, _, v in events if key == k)


def sessions(rows: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    assert all(row["n"] == len(row["all"]) for row in rows)
    return sorted((row["k"], sorted(row["all"])) for row in rows)


def long_sessions(store: Store, folder: Path) -> Shard:
    """Two sessions of a thousand rows that go on, two rows at a time."""
    of = stage()
    shard = Shard(store, folder, of.operator)
    events: list[Event] = []
    for epoch in range(60):
        rows = 2000 if epoch == 0 else 2
        new = [("ab"[n % 2], 10 * epoch + n % 10, 10_000 * epoch + n) for n in range(rows)]
        events += new
        shard.step(arrived(of, new, shard.watermark), watermark=10 * epoch)
        if epoch % 20 == 19:
            shard.restart()
    told = shard.step([], watermark=10_000)
    assert sessions(told) == [session("a", events), session("b", events)]
    assert shard.run_rows == 0
    assert shard.step([], watermark=20_000) == []
    return shard


def test_a_long_session_is_not_written_anew_at_each_touch(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pieces = long_sessions(store, tmp_path / "pieces").written_bytes
    monkeypatch.setattr(session_module, "FOLDED_BY", 10**9)
    whole = long_sessions(store, tmp_path / "whole").written_bytes
    assert in_pieces < whole / 4


def test_sessions_of_format_1_go_on(store: Store, tmp_path: Path) -> None:
    """A header with the content in it, in two versions: a base, and what changed since."""
    of = stage()
    operator: SessionWindows = of.operator
    shard = Shard(store, tmp_path, operator)
    old = [("a", time, time) for time in range(0, 300, 5)] + [("b", 250, 250)]
    chain = []
    for version, events in ((1, old[:20]), (2, old)):
        made = SessionWindows(operator.input_schema, operator.keys, GAP, operator.aggregation)
        other = Shard(store, tmp_path / "other", made)
        other.epoch = 100 * version
        other.step(arrived(of, events), watermark=0, saves=False)
        (run,) = other.state.unsaved
        with pa.memory_map(run.path) as file:
            rows = operator.whole(pa.ipc.open_file(file).read_all())
        rows = rows.drop_columns([SINCE_COLUMN])
        place = rows.schema.get_field_index(VERSION_COLUMN)
        versions = pa.array([version] * rows.num_rows, pa.int64())
        rows = rows.set_column(place, VERSION_COLUMN, versions)
        chain.append(
            write_chunk_set(
                store.handle().map("jobs/j/state"),
                ChunkSetName("s", version, 1, 0, "old"),
                rows,
                range(PARTITIONS) if version == 1 else (),
                sequence=version - 1,
                is_base=version == 1,
                partition_count=PARTITIONS,
            )
        )
    shard.epoch, shard.watermark = 10, 0
    shard.state = ShardState(chain=tuple(chain))
    shard.restart()
    more = [("a", 310, 310), ("a", 320, 320)]
    assert shard.step(arrived(of, more[:1]), watermark=0) == []
    shard.restart()
    assert shard.step(arrived(of, more[1:]), watermark=0) == []
    told = shard.step([], watermark=10_000)
    assert sessions(told) == [session("a", [*old, *more]), ("b", [250])]
