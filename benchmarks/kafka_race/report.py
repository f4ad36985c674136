"""The page of results, in markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.kafka_race.backlog import Slot
from benchmarks.kafka_race.order import CASES, TITLES
from benchmarks.kafka_race.paced import Paced
from benchmarks.ratios import Ratio, ratio

NAMES = {"ours": "dagster_jet", "peer": "Structured Streaming"}
GOAL = 1.0
FIGURES = {
    "rows_per_s": "rows/s",
    "cpu_s_per_m": "CPU-s per million",
    "whole_rows_per_s": "rows/s, whole run",
    "whole_cpu_s_per_m": "CPU-s per million, whole run",
}
_PROMISES = """\
dagster_jet: exactly once into both sinks, default settings (three members, one backup, all on one
disk). Structured Streaming: at least once into both, by Spark's
own documentation: after a crash the last trigger's rows come again; a checkpoint per trigger,
RocksDB. Its Kafka connector, and for PostgreSQL `foreachBatch` with `write.jdbc`
(`reWriteBatchedInserts`, batches of 10,000). Both: `local[2]`, one broker, one database (`fsync`
on), all on these cores."""
_CHECKED = """\
A time counts only after all output was read by plain clients (a `read_committed` consumer,
psycopg) and compared as multisets with what DuckDB makes of the messages. Steady rates are from
the first commit that has a quarter of the messages to the commit that has all; the whole run
begins with the process. CPU is of the engine's process tree, without broker and database."""
_LATENCY = """\
Messages are sent by a schedule, at half of the steady rate of the slower engine. Latency is from
the *scheduled* moment to the one when the result can be read. Of a window that is the moment at
which, by the schedule, the watermark passes its end, until a `read_committed` consumer has its
row; of a table, that of the message, until PostgreSQL has committed its row
(`track_commit_timestamp`). Our results become visible with a snapshot, of which there are at
most four a second. Those of the peer become visible while a trigger runs."""


def page(result: Mapping[str, Any]) -> str:
    parts = [*_head(result)]
    if result.get("slots"):
        parts += ["## Backlog", _PROMISES, _CHECKED, _backlog(result["slots"]), *_tried(result)]
    if result.get("paced"):
        parts += ["## Latency at half load", _LATENCY, _paced(result["paced"])]
    if result.get("readers"):
        parts += ["## Readers", _readers(result["readers"])]
    return "\n\n".join(parts) + "\n"


def _head(result: Mapping[str, Any]) -> list[str]:
    said = result["versions"]
    command = "python -m benchmarks kafka_race" + (" --quick" if result["quick"] else "")
    return [
        "# Kafka and PostgreSQL",
        f"{result['messages']:,} messages of about 50 bytes in 4 partitions; {result['cores']} "
        f"cores. Made by `{command}`; how: [benchmarks](../README.md).",
        f"PySpark {said['pyspark']}, its Kafka connector {said['connector']}"
        + (
            ""
            if said["connector"] == said["pyspark"]
            else " (the registry has none of its version)"
        )
        + f", confluent-kafka {said['confluent-kafka']}, Kafka {said['kafka']}.",
        *circumstances(result),
    ]


def circumstances(result: Mapping[str, Any]) -> list[str]:
    """State of the machine, and whether the run was quick, or has failed."""
    lines = [
        f"Load of the machine: {result['load']:.1f} before, {result['load_after']:.1f} at the end; "
        f"a fixed loop took {result['loop_ms']:.0f} ms.",
    ]
    if result["quick"]:
        lines.append("A quick run: it shows that all works; the figures mean little.")
    if "failed" in result:
        lines.append(f"**It was not finished:** {result['failed']}")
    return lines


def _backlog(rounds: Sequence[Mapping[str, Any]]) -> str:
    rows = ["| | figure | dagster_jet | Structured Streaming | ours / theirs | goal |", rule(6)]
    for case in CASES:
        of_case = [one["slots"] for one in rounds if one["case"] == case]
        for figure, title in FIGURES.items():
            medians = (number(median(of_case, engine, figure)) for engine in NAMES)
            goal = f"≥ {GOAL:g}" if figure == "rows_per_s" else ""
            cells = (TITLES[case], title, *medians, shown(compared(of_case, figure)), goal)
            rows.append(f"| {' | '.join(cells)} |")
    loads = ", ".join(f"{case}: {_load(rounds, case)}" for case in CASES)
    rows.append(
        f"\nMedians of {len(rounds) // len(CASES)} round(s); of the ratios, [95 % interval]. "
        f"Load before the slots: {loads}."
    )
    return "\n".join(rows)


def compared(
    rounds: Sequence[Sequence[Mapping[str, Any]]],
    figure: str,
    engines: Sequence[str] = tuple(NAMES),
) -> Ratio:
    """The first engine : the second one."""

    def values(engine: str) -> list[list[float]]:
        return [
            [slot[figure] for slot in slots if slot["engine"] == engine and slot[figure] > 0]
            for slots in rounds
        ]

    numerators, denominators = map(values, engines)
    return ratio(numerators, denominators)


def _tried(result: Mapping[str, Any]) -> list[str]:
    peers = [slot for slot in result["tried"] if slot["engine"] == "peer"]
    tried = "; ".join(
        f"{slot['case']} {slot['trigger_rows']:,}: {number(slot['rows_per_s'])} rows/s"
        for slot in peers
    )
    return [f"Of the peer's triggers (`maxOffsetsPerTrigger`) the fastest one races: {tried}."]


def _paced(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        "| | engine | messages/s | p50, s | p99, s | results | missing, extra | cores | load |",
        rule(9),
    ]
    for one in found:
        cells = (
            TITLES[one["case"]], NAMES[one["engine"]], f"{one['per_second']:,}",
            f"{one['p50_s']:.2f}", f"{one['p99_s']:.2f}", f"{one['results']:,}",
            f"{one['missing']}, {one['extra']}", f"{one['cpu_cores']:.2f}", f"{one['load']:.1f}",
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    late = max(one["sender_late_s"] for one in found)
    rows.append(f"\nThe sender was late by {late:.2f} s at most; that is in the figures of both.")
    return "\n".join(rows)


def _readers(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        "The same offsets in one session, by our readers in tasks and by Spark's connector as a "
        "batch reader with explicit offsets; rounds interleaved, the first two warm up.\n",
        "| values | figure | ours | Spark's connector | ours / Spark's |",
        rule(5),
    ]
    for one in found:
        for figure, place in (("rows_per_s", "rows_per_s"), ("cpu_s_per_m", "cpu")):
            medians = (number(one[who][figure]) for who in ("ours", "sparks"))
            cells = (one["values"], FIGURES[figure], *medians, shown(Ratio(**one[place])))
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def slot_line(label: str, slot: Slot) -> str:
    trigger = f" at {slot.trigger_rows:,}" if slot.trigger_rows else ""
    return (
        f"{label}, {slot.case}: {slot.engine}{trigger} {number(slot.rows_per_s)} rows/s, "
        f"{slot.cpu_s_per_m:.2f} CPU-s/M; whole run {slot.whole_rows_per_s:,.0f} rows/s, "
        f"{slot.whole_cpu_s_per_m:.2f} CPU-s/M; {slot.commits} commits; load {slot.load:.1f}"
    )


def paced_line(one: Paced) -> str:
    return (
        f"half load, {one.case}: {one.engine} p50 {one.p50_s:.2f} s, p99 {one.p99_s:.2f} s of "
        f"{one.results:,} at {one.per_second:,}/s; missing {one.missing}, extra {one.extra}"
    )


def median(rounds: Sequence[Sequence[Mapping[str, Any]]], engine: str, figure: str) -> float:
    found = [
        slot[figure]
        for slots in rounds
        for slot in slots
        if slot["engine"] == engine and slot[figure] > 0
    ]
    return statistics.median(found) if found else math.nan


def _load(rounds: Sequence[Mapping[str, Any]], case: str) -> str:
    loads = [slot["load"] for one in rounds if one["case"] == case for slot in one["slots"]]
    return f"{min(loads):.1f} to {max(loads):.1f}" if loads else "–"


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def shown(ratio: Ratio) -> str:
    return str(ratio) if ratio.rounds else "–"


def rule(columns: int) -> str:
    return f"|{' --- |' * columns}"
