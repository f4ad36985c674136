"""Violations in two sinks: each kind is counted where it belongs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import duckdb

from benchmarks.race.two_sinks import Difference, difference

# The bids of the input: (number, auction).
BIDS = [(0, 7), (1, 7), (2, 8)]
COUNTS = [(0, 7, 1), (1, 7, 2), (2, 8, 1)]


def judge(
    folder: Path, rows: Sequence[tuple[int, int]], counts: Sequence[tuple[int, int, int]]
) -> Difference:
    files = []
    columns = ("number", "auction", "n")
    for sink, values in (("rows", rows), ("counts", counts)):
        path = folder / f"{sink}.json"
        lines = [json.dumps(dict(zip(columns, value, strict=False))) + "\n" for value in values]
        path.write_text("".join(lines), encoding="utf-8")
        files.append([path])
    with duckdb.connect() as db:
        db.execute("CREATE TABLE bid (number BIGINT, auction BIGINT)")
        db.executemany("INSERT INTO bid VALUES (?, ?)", BIDS)
        return difference(db, *files, events=100)


def test_two_right_sinks(tmp_path: Path) -> None:
    assert judge(tmp_path, BIDS, COUNTS) == Difference(3, 0, 0, 0, 0)


def test_sentinels_do_not_count(tmp_path: Path) -> None:
    assert judge(tmp_path, [*BIDS, (100, -1)], COUNTS) == Difference(3, 0, 0, 0, 0)


def test_a_row_in_one_sink_only_is_lost_and_diverged(tmp_path: Path) -> None:
    assert judge(tmp_path, BIDS[:2], COUNTS) == Difference(3, 1, 0, 1, 0)


def test_a_row_that_both_sinks_have_lost_is_not_diverged(tmp_path: Path) -> None:
    assert judge(tmp_path, BIDS[:2], COUNTS[:2]) == Difference(3, 2, 0, 0, 0)


def test_a_row_that_is_there_twice_is_doubled(tmp_path: Path) -> None:
    assert judge(tmp_path, [*BIDS, BIDS[0]], COUNTS) == Difference(3, 0, 1, 1, 0)


def test_a_state_that_counted_a_bid_twice_shows_in_the_places(tmp_path: Path) -> None:
    assert judge(tmp_path, BIDS, [COUNTS[0], (1, 7, 3), COUNTS[2]]) == Difference(3, 0, 0, 0, 1)


def test_empty_sinks_have_lost_everything(tmp_path: Path) -> None:
    assert judge(tmp_path, [], []) == Difference(3, 6, 0, 0, 0)
