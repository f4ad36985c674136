"""NEXMark queries on a standalone cluster of two workers of one core, with Redis members: ours at
defaults and Structured Streaming at two triggers, from a backlog and at a steady pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.race.backlog import Run, run_backlog
from benchmarks.race.contestants import JET, SPARK, Contestant
from benchmarks.race.data import Stream
from benchmarks.race.environments import prepare
from benchmarks.race.half_load import Paced, Schedule, run_paced
from benchmarks.store_places import Servers
from tests.integration.standalone import standalone

QUERIES = ("q5", "q8", "q11")
AT_PACE = "q5"
EVENTS = 1_000_000
RATE = 1_000
"""Events per second at the steady pace."""
BACKLOG: tuple[tuple[Contestant, dict[str, Any]], ...] = (
    (JET, {}),
    (SPARK, {"files": 5}),
    (SPARK, {"files": 20}),
)
PACED: tuple[tuple[Contestant, dict[str, Any]], ...] = ((JET, {}), (SPARK, {"files": 1000}))


def run(
    root: Path,
    folder: Path,
    *,
    queries: Sequence[str],
    minutes: float,
    console: Console,
) -> dict[str, Any]:
    """Runs the engines in turn on one cluster; the rows of a backlog are right, or it fails.

    Raises: WrongAnswerError, TimeOutError, EngineFailedError."""
    cache = root / ".cache" / "race"
    environment = prepare(JET, cache / "environments")  # the peer races in the same
    stream, found = Stream(EVENTS), []
    table = Table("query", "engine", "settings", "whole run /s", "steady /s", "first row s")
    with Servers() as members, standalone(folder / "spark") as spark:
        cluster: Mapping[str, Any] = {"spark": dict(spark), "members": list(members.urls)}
        for query in queries or QUERIES:
            for contestant, settings in BACKLOG:
                members.clear()
                one = run_backlog(
                    contestant, environment, query, stream, cache, folder / "slot", settings,
                    timeout_s=600, cluster=cluster,
                )  # fmt: skip
                found.append(one.as_json())
                table.add_row(*_cells(one))
                console.print(_cells(one))
        console.print(table)
        paced = []
        for contestant, settings in PACED if minutes else ():
            members.clear()
            late = run_paced(
                contestant, environment, AT_PACE, RATE, Schedule.counting(minutes), cache,
                folder / "paced", settings, cluster=cluster,
            )  # fmt: skip
            paced.append(late.as_json())
            console.print(_said(late))
    return {"events": EVENTS, "backlog": found, "rate": RATE, "paced": paced}


def _cells(one: Run) -> tuple[str, ...]:
    rates = (f"{rate:,.0f}" for rate in (one.total, one.steady))
    return (one.query, one.engine, str(one.settings or ""), *rates, f"{one.first_row_s:.1f}")


def _said(one: Paced) -> str:
    return (
        f"{one.engine}, {one.query} at {one.rate:,} events/s: p50 {one.p50_s:.2f} s, "
        f"p99 {one.p99_s:.2f} s; {one.answers} answers, {one.lost} lost, {one.doubled} doubled"
    )
