"""Time from an event's schedule to its committed row: ours at defaults, also with a standby,
Structured Streaming with all input that there is per trigger, and PyFlink."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.race.contestants import FLINK, JET, SPARK, Contestant
from benchmarks.race.environments import prepare
from benchmarks.race.half_load import QUERIES_AT_PACE, Paced, Schedule, run_paced

RATE = 2_000
"""Events per second; far below what either engine can do."""
_COLUMNS = (
    "engine", "p50 s", "p95 s", "p99 s", "cores", "first row s", "kill to row s", "rows", "lost",
    "doubled",
)  # fmt: skip
RACING: dict[str, tuple[Contestant, dict[str, Any], bool]] = {
    "dagster_jet": (JET, {}, False),
    "dagster_jet, a standby": (JET, {}, True),
    "Structured Streaming": (SPARK, {"files": 1000}, False),
    "PyFlink": (FLINK, {}, False),
}
"""Engine, settings, and whether a standby waits."""


def run(
    root: Path,
    folder: Path,
    *,
    queries: Sequence[str],
    engines: Sequence[str],
    rounds: int,
    schedule: Schedule,
    console: Console,
) -> dict[str, Any]:
    """The engines take turns, so that a busy minute of the machine hits each of them.

    Raises: KeyError for an engine that is not in `RACING`."""
    cache = root / ".cache" / "race"
    racing = {label: RACING[label] for label in engines or RACING}
    environments = {one.name: prepare(one, cache / "environments") for one, _, _ in racing.values()}
    found: list[dict[str, Any]] = []
    for query in queries or QUERIES_AT_PACE:
        table = Table(title=f"{query}, {RATE:,} events/s")
        for column in _COLUMNS:
            table.add_column(column)
        for _ in range(rounds):
            for label, (contestant, settings, standby) in racing.items():
                paced = run_paced(
                    contestant,
                    environments[contestant.name],
                    query,
                    RATE,
                    schedule,
                    cache,
                    folder / "paced",
                    settings,
                    standby=standby,
                )
                found.append({"label": label, **paced.as_json()})
                table.add_row(label, *_cells(paced))
        console.print(table)
    return {"rate": RATE, "runs": found}


def _cells(paced: Paced) -> list[str]:
    seconds = (paced.p50_s, paced.p95_s, paced.p99_s, paced.cpu_share)
    starts = (paced.cold_start_s, paced.recovery_s)
    rows = (paced.answers, paced.lost, paced.doubled)
    return [*(f"{s:.2f}" for s in seconds), *(f"{s:.1f}" for s in starts), *map(str, rows)]
