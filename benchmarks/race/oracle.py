"""Compares committed rows with DuckDB's, as multisets. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks.race.data import open_views
from benchmarks.race.queries import Query


class WrongAnswerError(Exception):
    """A row is missing, doubled or different: the run's times do not count."""


@dataclass(frozen=True)
class Verdict:
    """Comparison of the committed rows with the expected ones, as multisets."""

    expected: int
    committed: int
    missing: int
    extra: int
    """Rows that there must not be, and rows that are there once too often."""

    @property
    def is_exact(self) -> bool:
        return self.expected > 0 and self.missing == self.extra == 0


def check(query: Query, answer: Path, files: Sequence[Path], source: Path, events: int) -> Verdict:
    """Compares the rows in `files` with those in `answer`.

    Args:
        source: the input; some comparisons leave out rows whose answer is a matter of taste.
    """
    with duckdb.connect() as db:
        open_views(db, source, events)
        return compare(db, query, answer, files)


def compare(
    db: duckdb.DuckDBPyConnection, query: Query, answer: Path, files: Sequence[Path]
) -> Verdict:
    """Compares like `check`, over views that are open."""
    db.execute(f"CREATE TABLE expected AS FROM '{answer}'")
    expected = _count(db, "expected")
    if not read_committed(db, query, files):
        return Verdict(expected, committed=0, missing=expected, extra=0)
    db.execute(f"CREATE TABLE found AS {query.found}")
    return Verdict(
        expected,
        committed=_count(db, "committed"),
        missing=_count(db, "(FROM expected EXCEPT ALL FROM found)"),
        extra=_count(db, "(FROM found EXCEPT ALL FROM expected)"),
    )


def read_committed(db: duckdb.DuckDBPyConnection, query: Query, files: Sequence[Path]) -> bool:
    """Makes `committed`, with texts only and the `filename`; False: there are no rows.

    Also makes `ms(text)`: milliseconds of a time, however an engine writes it.
    """
    db.execute(
        "CREATE MACRO ms(x) AS "
        "coalesce(TRY_CAST(x AS BIGINT), epoch_ms(TRY_CAST(x AS TIMESTAMPTZ)))"
    )
    filled = [str(path) for path in files if path.stat().st_size]
    if not filled:
        return False
    columns = dict.fromkeys((*query.columns, "diff"), "VARCHAR")
    db.execute(
        f"CREATE TABLE changes AS FROM read_json($files, columns = {columns}, "
        "format = 'newline_delimited', compression = 'none', filename = true)",
        {"files": filled},
    )
    # Pathway takes rows back; of all others `diff` is null.
    names = ", ".join((*query.columns, "filename"))
    taken_back = _count(db, "changes WHERE diff = '-1'")
    db.execute(
        f"CREATE TABLE committed AS SELECT {names} FROM changes WHERE diff IS DISTINCT FROM '-1'"
    )
    if taken_back:
        same = ", ".join(query.columns)
        db.execute(
            f"CREATE OR REPLACE TABLE committed AS SELECT {names} FROM (SELECT *, "
            f"row_number() OVER (PARTITION BY {same}, diff ORDER BY filename) AS place, "
            f"count(*) FILTER (diff = '-1') OVER (PARTITION BY {same}) AS gone FROM changes) "
            "WHERE diff IS DISTINCT FROM '-1' AND place > gone"
        )
    return True


def _count(db: duckdb.DuckDBPyConnection, rows: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM {rows}").fetchall()[0][0])
