"""Expected output: DuckDB over the input files. Shares no code with either engine."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb

from benchmarks.case import Case

_INPUT_COLUMNS = "k: 'VARCHAR', ts: 'BIGINT', v: 'BIGINT'"


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


def check(engine: str, case: Case, output: Path, source: Path) -> int:
    """Compares as multisets and returns how many rows there are.

    Raises:
        WrongOutputError: a row is missing, extra, twice or different.
    """
    files = committed_files(engine, output)
    if not files:
        raise WrongOutputError(f"{engine}: nothing was committed.")
    with duckdb.connect() as db:
        db.execute("SET threads = 2")
        db.execute(f"CREATE TABLE expected AS SELECT * FROM '{_kept(case, source)}'")
        output_rows = _table(case.format, files, case.output_columns)
        db.execute(f"CREATE TABLE actual AS WITH output AS (FROM {output_rows}) {case.actual}")
        wrong = {
            name: db.execute(f"SELECT count(*) FROM (FROM {a} EXCEPT ALL FROM {b})").fetchall()[0][
                0
            ]
            for name, a, b in (
                ("missing", "expected", "actual"),
                ("extra", "actual", "expected"),
            )
        }
        rows = int(db.execute("SELECT count(*) FROM expected").fetchall()[0][0])
    if any(wrong.values()):
        raise WrongOutputError(f"{engine}: {wrong} of {rows} rows in {output}.")
    return rows


def _kept(case: Case, source: Path) -> Path:
    """The expected rows; computed once per data set and case, kept beside the input."""
    kept = source.parent / f"expected-{case.name}.parquet"
    if not kept.exists():
        sql = case.expected(
            lambda name: _table(case.format, [f"{source / name}/*.{case.format}"], _INPUT_COLUMNS)
        )
        duckdb.execute(f"COPY ({sql}) TO '{kept}' (FORMAT parquet)")
    return kept


def _table(format: str, files: list[str], columns: str) -> str:
    if format == "parquet":
        return f"read_parquet({files})"
    return f"read_json({files}, columns={{{columns}}}, format='newline_delimited')"
