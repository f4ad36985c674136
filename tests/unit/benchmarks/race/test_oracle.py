"""The comparison of committed rows with the answer finds each kind of wrong row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks.race.oracle import Verdict, compare
from benchmarks.race.queries import QUERIES

START, END = 1_600_000_000_000, 1_600_000_010_000
ROWS = [
    {"id": number, "name": f"n{number}", "window_start": START, "window_end": END}
    for number in (1, 2)
]


@pytest.fixture
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def judge(
    db: duckdb.DuckDBPyConnection,
    folder: Path,
    rows: Sequence[dict[str, Any]],
    expected: str = "(1), (2)",
) -> Verdict:
    answer = folder / "answer.parquet"
    db.execute(
        f"COPY (SELECT id::BIGINT AS id, 'n' || id AS name, {START}::BIGINT AS s, "
        f"{END}::BIGINT AS e FROM (VALUES {expected}) v(id)) TO '{answer}' (FORMAT parquet)"
    )
    found = folder / "rows.json"
    found.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return compare(db, QUERIES["q8"], answer, [found])


def test_the_right_rows_are_exact(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    assert judge(db, tmp_path, ROWS) == Verdict(2, committed=2, missing=0, extra=0)


def test_times_may_be_texts(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = {"window_start": "2020-09-13T12:26:40.000Z", "window_end": "2020-09-13 12:26:50"}
    assert judge(db, tmp_path, [row | text for row in ROWS]).is_exact


def test_a_missing_row_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    verdict = judge(db, tmp_path, ROWS[:1])
    assert (verdict.missing, verdict.extra, verdict.is_exact) == (1, 0, False)


def test_a_row_that_must_be_there_twice_is_missed(
    db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    verdict = judge(db, tmp_path, ROWS, expected="(1), (2), (2)")
    assert (verdict.missing, verdict.extra) == (1, 0)


def test_a_doubled_row_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    verdict = judge(db, tmp_path, [*ROWS, ROWS[0]])
    assert (verdict.missing, verdict.extra, verdict.is_exact) == (0, 1, False)


def test_a_wrong_row_is_missing_and_extra(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    verdict = judge(db, tmp_path, [ROWS[0], ROWS[1] | {"name": "other"}])
    assert (verdict.missing, verdict.extra, verdict.is_exact) == (1, 1, False)


def test_a_row_that_was_taken_back_does_not_count(
    db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    wrong = ROWS[0] | {"name": "early"}
    changes = [wrong | {"diff": 1}, wrong | {"diff": -1}, *({**row, "diff": 1} for row in ROWS)]
    assert judge(db, tmp_path, changes).is_exact
    # Progress is asked for file by file.
    assert db.execute("SELECT count(DISTINCT filename) FROM committed").fetchall() == [(1,)]


def test_a_row_that_was_taken_back_once_may_be_there_again(
    db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    again = [ROWS[0] | {"diff": diff} for diff in (1, -1, 1)]
    assert judge(db, tmp_path, [*again, ROWS[1] | {"diff": 1}]).is_exact


def test_an_engine_that_wrote_nothing_is_not_exact(
    db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    assert judge(db, tmp_path, []) == Verdict(2, committed=0, missing=2, extra=0)


def test_no_answer_is_no_exact_answer() -> None:
    verdict = Verdict(1, committed=1, missing=0, extra=0)
    assert verdict.is_exact
    assert not replace(verdict, expected=0).is_exact
