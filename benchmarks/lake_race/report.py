"""The page of results, in markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kafka_race.report import (
    FIGURES,
    circumstances,
    compared,
    median,
    number,
    rule,
    shown,
)
from benchmarks.lake_race.order import CASES, LAKES, SOURCES
from benchmarks.ratios import Ratio

GOALS = {"parquet": 0.9, "peer": 1.2}
"""Least ratios of our table's rate to our own Parquet sink's, and to Structured Streaming's."""
GOAL_MS = 150
_NAMES = {
    "parquet": "our Parquet files",
    "peer": "Structured Streaming's Parquet files",
    "flink": "PyFlink's Iceberg table",
}
_PROMISES = """\
dagster_jet: exactly once into all, default settings (three members, one backup, all on one disk);
Iceberg's catalog is in SQLite. Structured Streaming: exactly once by its file sink's log, a
checkpoint per trigger. PyFlink: exactly once by Iceberg's own sink, a checkpoint every second, two
slots; a catalog in files. Others: `local[2]`. All on these cores, with the broker."""
_CHECKED = """\
A time counts only after all committed output was read (Delta Lake by `deltalake`, Iceberg by
`pyiceberg`, files by the engine's log of commits) and compared as multisets by DuckDB with what was
sent. Steady rates are from the first commit that has a quarter of the rows to the commit that has
all; the whole run begins with the process. CPU is of the engine's process tree, without the
broker."""
_COMMITS = """\
A commit of one small file, by the sink's committer, without Spark: it looks at the table, adds the
file with its marker, and looks again. *Maintained* is after one run of the sink's maintenance
(compaction, checkpoint). Of Iceberg the library reads and writes all snapshots of the metadata in
each commit. A table that a sink creates says how many the sink keeps: of 100, every 26th commit
lets 26 expire, by a request more. The table that keeps all is another one. Steps are medians, in
ms."""


def page(result: Mapping[str, Any]) -> str:
    parts = [*_head(result)]
    if result.get("slots"):
        rates = [_PROMISES, _CHECKED, _medians(result["slots"]), _ratios(result["slots"])]
        parts += ["## Rates", *rates]
    if result.get("commits"):
        parts += ["## A commit to a table with many versions", _COMMITS]
        parts.append(_steps(result["commits"]))
    return "\n\n".join(parts) + "\n"


def short_table(result: Mapping[str, Any]) -> str:
    """Table for the benchmarks' page."""
    lines = ["| | measured | goal |", rule(3)]
    for case in CASES:
        of_case = _of(result.get("slots", ()), case)
        for other in _others(of_case):
            found = compared(of_case, "rows_per_s", ("lake", other))
            what = f"{_title(case, 'lake')}: rows/s by those of {_NAMES[other]}"
            lines.append(f"| {what} | {shown(found)} | {_goal(other)} |")
    for one in result.get("commits", ()):
        what = f"commit, {one['table']}, {one['state']}: median; p95"
        lines.append(f"| {what} | {_ms(one)} | ≤ {GOAL_MS} ms |")
    rounds = len(_of(result.get("slots", ()), CASES[0]))
    loads = f"load {result['load']:.1f} before, {result['load_after']:.1f} at the end"
    return "\n".join([*lines, "", f"{rounds} round(s), {result['cores']} cores, {loads}."])


def _head(result: Mapping[str, Any]) -> list[str]:
    said = result["versions"]
    command = "python -m benchmarks lake_race" + (" --quick" if result["quick"] else "")
    return [
        "# Tables of a lake",
        f"Rows of about 50 bytes of JSON: {result['file_rows']:,} in files of 20,000, and "
        f"{result['rows']:,} in 4 partitions of a topic; {result['cores']} cores. Made by "
        f"`{command}`; how: [benchmarks](../README.md).",
        f"PySpark {said['pyspark']}, its Kafka connector {said['connector']}, deltalake "
        f"{said['deltalake']}, pyiceberg {said['pyiceberg']}, Kafka {said['kafka']}"
        + (f", PyFlink {said['flink']} with Iceberg {said['iceberg']}" if "flink" in said else "")
        + ".",
        *circumstances(result),
    ]


def _medians(rounds: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"| | {' | '.join(FIGURES.values())} | commits |", rule(len(FIGURES) + 2)]
    for case in CASES:
        of_case = _of(rounds, case)
        for engine in ("lake", *_others(of_case)):
            figures = [median(of_case, engine, name) for name in (*FIGURES, "commits")]
            cells = (_title(case, engine), *map(number, figures))
            lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"\nMedians of {len(_of(rounds, CASES[0]))} round(s).")
    return "\n".join(lines)


def _ratios(rounds: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| | of the figure | ratio | goal |", rule(4)]
    for case in CASES:
        for other in _others(_of(rounds, case)):
            for figure, title in FIGURES.items():
                found: Ratio = compared(_of(rounds, case), figure, ("lake", other))
                goal = _goal(other) if figure == "rows_per_s" else ""
                what = f"{_title(case, 'lake')} by {_NAMES[other]}"
                lines.append(f"| {what} | {title} | {shown(found)} | {goal} |")
    lines.append("\nMedians of the rounds' ratios, [95 % interval].")
    return "\n".join(lines)


def _steps(found: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| | | commits | median; p95 | goal | steps |", rule(6)]
    for one in found:
        steps = ", ".join(f"{step} {spent:.1f}" for step, spent in one["steps_ms"].items())
        goal = f"≤ {GOAL_MS} ms"
        cells = (one["table"], one["state"], str(one["commits"]), _ms(one), goal, steps)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _of(rounds: Sequence[Mapping[str, Any]], case: str) -> list[Sequence[Mapping[str, Any]]]:
    return [one["slots"] for one in rounds if one["case"] == case]


def _others(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Engines that have raced against the table."""
    there = {one["engine"] for slots in rounds for one in slots}
    return [engine for engine in _NAMES if engine in there]


def _goal(other: str) -> str:
    return f"≥ {GOALS[other]:g}" if other in GOALS else ""


def _title(case: str, engine: str) -> str:
    whose = {"peer": "Structured Streaming, ", "flink": "PyFlink, "}.get(engine, "")
    place = LAKES[case] if engine in ("lake", "flink") else "Parquet"
    return f"{whose}{SOURCES[case]} → {place}"


def _ms(one: Mapping[str, Any]) -> str:
    return f"{one['median_ms']:.0f} ms; {one['p95_ms']:.0f} ms"
