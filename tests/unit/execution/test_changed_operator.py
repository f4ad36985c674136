"""A stage goes on with another `within` or `ttl` than its state was saved under, right in its
tasks: what died under the old one stays dead, what was still to come comes, all of it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.store import Store
from tests.unit.operators.stepping import addressed
from tests.unit.spark.shard import Row, Shard


def left_join(within: int) -> IntervalJoin:
    left, right = (pa.schema([(name, pa.int64())]) for name in "lr")
    return IntervalJoin(pa.schema([("k", pa.string())]), left, right, (-within, within), "left")


def left(time: int) -> Row:
    return addressed(time, {"k": "a"}, l=time)


def right(time: int) -> Row:
    return addressed(time, {"k": "a"}, r=time)


def test_under_a_longer_interval_a_row_that_came_out_alone_finds_no_partner(
    store: Store, tmp_path: Path
) -> None:
    shard = Shard(store, tmp_path, left_join(10))
    assert shard.step([left(0), left(45)], [], watermark=40) == [{"k": "a", "l": 0, "r": None}]
    for _ in range(2):
        shard.restart(left_join(100))
        assert shard.step([], [], watermark=40) == []
    assert shard.step([], [right(60)], watermark=40) == [{"k": "a", "l": 45, "r": 60}]
    assert shard.step([], [], watermark=1000) == []


@pytest.mark.parametrize("watermark", [50, 51])
def test_under_a_shorter_interval_a_row_that_waits_for_none_any_more_comes_out_alone(
    store: Store, tmp_path: Path, watermark: int
) -> None:
    shard = Shard(store, tmp_path, left_join(100))
    assert shard.step([left(0), left(45)], [], watermark=50) == []
    shard.restart(left_join(10))
    assert shard.step([], [right(55)], watermark=watermark) == [
        {"k": "a", "l": 45, "r": 55},
        {"k": "a", "l": 0, "r": None},
    ]
    assert shard.step([], [], watermark=1000) == []


def count(state: Any, row: Row) -> Row:
    state.value += 1
    return {"k": row["k"], "n": state.value}


def last_word(key: Row, value: int, watermark: int) -> Row:
    return {"k": key["k"], "n": -value}


def counter(ttl: int) -> StatefulMap:
    rows = pa.schema([("k", pa.string())])
    results = rows.append(pa.field("n", pa.int64()))
    return StatefulMap("s", ("k",), rows, results, count, int, ttl, last_word)


def test_under_a_longer_life_a_key_that_was_forgotten_stays_so(
    store: Store, tmp_path: Path
) -> None:
    row = [addressed(time, {"k": "a"}) for time in (0, 5, 150)]
    shard = Shard(store, tmp_path, counter(10))
    assert shard.step([row[0]], watermark=0) == [{"k": "a", "n": 1}]
    assert shard.step([row[1]], watermark=100) == [{"k": "a", "n": 2}, {"k": "a", "n": -2}]
    shard.restart(counter(1000))
    assert shard.step([row[2]], watermark=100) == [{"k": "a", "n": 1}]
    assert shard.step([], watermark=10_000) == [{"k": "a", "n": -1}]


def test_under_a_shorter_life_a_key_has_its_last_word(store: Store, tmp_path: Path) -> None:
    shard = Shard(store, tmp_path, counter(1000))
    assert shard.step([addressed(0, {"k": "a"})], watermark=100) == [{"k": "a", "n": 1}]
    shard.restart(counter(10))
    assert shard.step([], watermark=100) == [{"k": "a", "n": -1}]
    shard.restart(counter(1000))
    assert shard.step([addressed(200, {"k": "a"})], watermark=100) == [{"k": "a", "n": 1}]
