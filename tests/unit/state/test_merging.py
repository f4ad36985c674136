"""Merging in parts gives what merging everything at once gives, and reads the same in a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    Intervals,
)
from dagster_jet.snapshot.manifest import ShardState
from dagster_jet.state import merging
from dagster_jet.state.merging import is_worth_merging, merged_parts
from dagster_jet.state.runs import RunFolder, RunState

PARTITIONS = 7
LOWEST = -(2**63)
Rows = list[tuple[int, int, int]]
"""Key hash, time, count."""

hashes = st.one_of(st.integers(-50, 50), st.integers(LOWEST, 2**63 - 1), st.just(LOWEST))
row_lists = st.lists(st.tuples(hashes, st.integers(0, 9), st.integers(1, 5)), max_size=60)


def table(rows: Rows, *, hashed: bool) -> pa.Table:
    columns = {
        PARTITION_COLUMN: pa.array([h % PARTITIONS for h, _, _ in rows], pa.int32()),
        HASH_COLUMN if hashed else "k": pa.array([h for h, _, _ in rows], pa.int64()),
        TIME_COLUMN: pa.array([t for _, t, _ in rows], pa.int64()),
        "n": pa.array([n for _, _, n in rows], pa.int64()),
    }
    return pa.table(columns)


def summed(tables: list[pa.Table]) -> pa.Table:
    whole = pa.concat_tables(tables)
    group = [name for name in whole.column_names if name != "n"]
    merged = whole.group_by(group, use_threads=False).aggregate([("n", "sum")])
    return merged.rename_columns([*group, "n"]).select(whole.column_names).cast(whole.schema)


def contents(*tables: pa.Table) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row.values()) for t in tables for row in t.to_pylist())


def none_dead(tables: list[pa.Table]) -> list[pa.Table]:
    return list(tables)


@settings(deadline=None)
@given(st.lists(row_lists, min_size=1, max_size=4), st.booleans(), st.booleans(), st.integers(1, 9))
def test_parts_together_are_the_whole(
    lists: list[Rows], hashed: bool, by_partition: bool, rows_at_once: int
) -> None:
    tables = [table(rows, hashed=hashed) for rows in lists]
    tables = [t.sort_by(HASH_COLUMN) if hashed and i % 2 else t for i, t in enumerate(tables)]
    parts = list(
        merged_parts(
            tables, summed, none_dead, by_partition=by_partition, rows_at_once=rows_at_once
        )
    )
    assert contents(*parts) == contents(summed(tables))
    column = HASH_COLUMN if hashed and not by_partition else PARTITION_COLUMN
    seen = [set(part.column(column).to_pylist()) for part in parts if part.num_rows]
    for lower, higher in pairwise(seen):
        assert max(lower) < min(higher)


def test_a_part_is_about_as_large_as_asked_for() -> None:
    rng = np.random.default_rng(1)
    rows = [(int(h), 0, 1) for h in rng.integers(LOWEST, 2**63 - 1, 20_000)]
    for hashed in (True, False):
        tables = [table(rows[:15_000], hashed=hashed), table(rows[15_000:], hashed=hashed)]
        parts = list(merged_parts(tables, summed, none_dead, rows_at_once=5_000))
        limit = 1.2 if hashed else 2  # seven partitions do not divide well into four parts
        assert max(part.num_rows for part in parts) < limit * 5_000


@settings(deadline=None)
@given(row_lists, st.sets(hashes, max_size=8))
def test_a_key_is_found_in_a_run_of_many_batches(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, wanted: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    runs = RunFolder(folder, "0-1-a", "stage", TIME_COLUMN)
    parts = merged_parts([table(rows, hashed=True)], summed, none_dead, rows_at_once=3)
    written = runs.write_parts(parts)
    state = RunState(runs, Summing(), ShardState(saved=written), None)
    asked = np.array([*wanted, *(h for h, _, _ in rows[:3])], np.int64)
    expected = [row for row in rows if row[0] in set(asked.tolist())]
    assert contents(state.find(np.unique(asked))) == contents(
        summed([table(expected, hashed=True)])
    )
    asked = np.unique(asked)[::-1]  # in no particular order
    within = Intervals(asked % 7 - 2, asked % 7 + asked % 4)
    near = [row for row in expected if row[0] % 7 - 2 <= row[1] <= row[0] % 7 + row[0] % 4]
    assert contents(state.find(asked, within)) == contents(summed([table(near, hashed=True)]))
    if rows:
        (run,) = written
        times = [t for _, t, _ in rows]
        assert (run.earliest_ms, run.latest_ms) == (min(times), max(times))
        assert run.rows == len({(h, t) for h, t, _ in rows})


@pytest.mark.parametrize(("apart", "worth_it"), [(0, True), (1_000, False), (700, False)])
def test_tables_are_merged_if_they_share_keys(apart: int, worth_it: bool) -> None:
    tables = [
        table([(key, 0, 1) for key in range(number * apart, number * apart + 1_000)], hashed=True)
        for number in range(2)
    ]
    assert is_worth_merging(tables, summed) is worth_it
    assert not is_worth_merging([tables[0], table([], hashed=True)], summed)


def test_a_compaction_drops_the_dead_of_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "ROWS_AT_ONCE", 10)
    runs = RunFolder(tmp_path, "0-1-a", "stage", TIME_COLUMN)
    written = ()
    for number in range(8):
        rows = [(key, number, 1) for key in range(12)]
        written += runs.write(table(rows, hashed=True))
    (compacted,) = runs.compact(written, summed, 5)
    (whole,) = runs.read([compacted])
    assert whole.column(TIME_COLUMN).num_chunks > 1
    assert contents(whole) == contents(
        table([(key, number, 1) for key in range(12) for number in (6, 7)], hashed=True)
    )
    assert pc.min(whole.column(TIME_COLUMN)).as_py() == compacted.earliest_ms == 6


def test_the_earliest_living_row_of_a_run_that_is_expired_in_part(tmp_path: Path) -> None:
    runs = RunFolder(tmp_path, "0-1-a", "stage", TIME_COLUMN)
    (one,) = runs.write(table([(5, 10, 1), (3, 20, 1), (4, 90, 1)], hashed=True))
    for expired_until, earliest in ((None, 10), (9, 10), (10, 20), (19, 20), (20, 90)):
        (tight,) = runs.tightened([one], expired_until)
        assert tight == replace(one, earliest_ms=earliest)


class Summing:
    """Operator with the methods that `RunState` needs."""

    state_schema = table([], hashed=True).schema
    time_column = TIME_COLUMN

    def merge(self, tables: list[pa.Table]) -> pa.Table:
        return summed(tables)
