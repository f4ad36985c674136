"""What the output must be: DuckDB over the input files. Shares no code with either engine."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb

from benchmarks.data import SENTINEL_KEY


class WrongOutputError(Exception):
    """An engine's committed rows are not the expected ones: its time does not count."""


def committed_files(engine: str, output: Path) -> list[str]:
    """The files that the engine's own log of commits names; others are not output."""
    names: list[str] = []
    if engine == "ours":
        for marker in (output / "_epochs").glob("*.json"):
            files = json.loads(marker.read_text(encoding="utf-8"))["files"]
            names += [str(output / file["name"]) for file in files]
        return names
    for log in (output / "_spark_metadata").glob("[0-9]*"):
        lines = log.read_text(encoding="utf-8").splitlines()[1:]
        names += [json.loads(line)["path"].removeprefix("file://") for line in lines]
    return sorted(set(names))


def check(engine: str, output: Path, source: Path, window_ms: int) -> int:
    """Compares as multisets and returns how many rows there are.

    Raises:
        WrongOutputError: a row is missing, extra, twice or different.
    """
    files = committed_files(engine, output)
    if not files:
        raise WrongOutputError(f"{engine}: nothing was committed.")
    with duckdb.connect() as db:
        db.execute("SET threads = 2")
        db.execute(f"CREATE TABLE expected AS {_expected_sql(source, window_ms)}")
        db.execute(
            "CREATE TABLE actual AS SELECT k, n::BIGINT AS n, epoch_ms("
            "replace(window_start, 'Z', '')::TIMESTAMP) AS start_ms FROM read_json(?, "
            "columns={k: 'VARCHAR', window_start: 'VARCHAR', n: 'BIGINT'}, "
            "format='newline_delimited') WHERE k <> ?",
            [files, SENTINEL_KEY],
        )
        columns = "k, start_ms, n"
        wrong = {
            name: db.execute(
                f"SELECT count(*) FROM (SELECT {columns} FROM {a} "
                f"EXCEPT ALL SELECT {columns} FROM {b})"
            ).fetchall()[0][0]
            for name, a, b in (
                ("missing", "expected", "actual"),
                ("extra", "actual", "expected"),
            )
        }
        rows = int(db.execute("SELECT count(*) FROM expected").fetchall()[0][0])
    if any(wrong.values()):
        raise WrongOutputError(f"{engine}: {wrong} of {rows} rows in {output}.")
    return rows


def _expected_sql(source: Path, window_ms: int) -> str:
    """Counts once per data set: kept beside the input."""
    kept = source.parent / "expected.parquet"
    if not kept.exists():
        duckdb.execute(
            f"COPY (SELECT k, ts - ts % {window_ms} AS start_ms, count(*)::BIGINT AS n "
            f"FROM read_json('{source}/*.json', format='newline_delimited', "
            f"columns={{k: 'VARCHAR', ts: 'BIGINT'}}) WHERE k <> '{SENTINEL_KEY}' "
            f"GROUP BY ALL) TO '{kept}' (FORMAT parquet)"
        )
    return f"SELECT * FROM '{kept}'"
