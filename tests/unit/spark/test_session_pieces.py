"""Sessions whose aggregates grow with their rows: what a touch writes is what has come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_jet import aggregates as agg
from dagster_jet.operators import session as session_module
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
