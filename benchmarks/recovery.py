"""Recovery from lost executors: a standalone cluster of two workers of one core and Redis members,
at a steady pace. First nothing is lost, then one executor is killed every 30 seconds.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.race.contestants import JET, SPARK, Contestant
from benchmarks.race.data import LAG_MS, open_views
from benchmarks.race.engine_process import EngineProcess
from benchmarks.race.environments import prepare
from benchmarks.race.measures import percentile
from benchmarks.race.observer import Observer
from benchmarks.race.oracle import compare
from benchmarks.race.order import Order
from benchmarks.race.pace import Pace, Replayer
from benchmarks.race.queries import QUERIES
from benchmarks.store_places import Servers
from tests.integration.standalone import standalone

QUERY = "q18"
"""Keeps a row per key, and commits rows in each epoch."""
RATE = 1_000
WARM_S, LAST_S = 60.0, 30.0
KILL_EVERY_S = 30.0
CALM_MINUTES_MAX = 5.0
QUIET_S = 30.0
"""Without new rows for so long the engine is done; one that comes back later has lost rows."""
_EXECUTOR = "CoarseGrainedExecutorBackend"
RACING: dict[str, tuple[Contestant, dict[str, Any]]] = {
    "dagster_jet": (JET, {}),
    "Structured Streaming": (SPARK, {"files": 1000}),
}


@dataclass(frozen=True)
class Found:
    """The figures of one engine; the engine's process ran from start to end."""

    engine: str
    minutes: float
    """With losses, and as many before without, but at most five."""
    undisturbed_s: tuple[float, ...]
    """Longest pause between commits with rows, in each 30 seconds without losses."""
    recoveries_s: tuple[float, ...]
    """The same in the 30 seconds after each kill."""
    expected: int
    lost: int
    doubled: int
    load: float


def run(
    root: Path, folder: Path, *, engines: Sequence[str], minutes: float, console: Console
) -> dict[str, Any]:
    """Runs the engines in turn on one cluster. Raises: EngineFailedError: an engine has ended."""
    cache = root / ".cache" / "race"
    pause = "longest pause between commits s: median, most"
    table = Table("engine", "kills", pause, "the same after a kill s", "rows")
    found = []
    with Servers() as members, standalone(folder / "spark") as settings:
        for label in engines or RACING:
            members.clear()
            one = _run(label, minutes, settings, members.urls, cache, folder / "losses")
            found.append(asdict(one))
            console.print(one)
            pauses = (one.undisturbed_s, one.recoveries_s)
            shown = (f"{percentile(each, 0.5):.1f}, {max(each):.1f}" for each in pauses)
            rows = f"{one.expected:,}, {one.lost} lost, {one.doubled} doubled"
            table.add_row(label, str(len(one.recoveries_s)), *shown, rows)
    console.print(table)
    return {"rate": RATE, "query": QUERY, "runs": found}


def _run(
    label: str,
    minutes: float,
    spark: Mapping[str, str],
    members: Sequence[str],
    cache: Path,
    folder: Path,
) -> Found:
    contestant, settings = RACING[label]
    environment = prepare(contestant, cache / "environments")
    calm_minutes = min(minutes, CALM_MINUTES_MAX)
    kills_from = WARM_S + 60 * calm_minutes
    kills_to = kills_from + 60 * minutes
    pace = Pace(RATE, kills_to + LAST_S)
    source, answer = pace.write(cache), pace.stream.answer(cache, QUERY)
    load = os.getloadavg()[0]
    shutil.rmtree(folder, ignore_errors=True)
    output, inbox = folder / "out", folder / "in"
    inbox.mkdir(parents=True)
    order = Order(
        QUERY, str(inbox), str(output), str(folder / "state"), LAG_MS, settings,
        spark=dict(spark), members=list(members),
    )  # fmt: skip
    observer = Observer(contestant.watch(QUERY, output), period_s=0.02)
    replayer = Replayer(source, inbox)
    engine = EngineProcess(contestant, environment, order, folder / "log.txt")
    chosen, killed_at = random.Random(7), []
    try:
        next_kill = replayer.started_at + kills_from
        while time.time() < replayer.ends_at:
            engine.check()
            observer.check()
            if next_kill <= time.time() < replayer.started_at + kills_to:
                next_kill += KILL_EVERY_S
                executors = _executors()
                if executors:
                    killed_at.append(time.time())
                    chosen.choice(executors).kill()
            time.sleep(0.02)
        while time.time() - max(observer.last, replayer.ends_at) < QUIET_S:
            engine.check()
            time.sleep(0.1)
    finally:
        engine.kill()
        replayer.stop()
        observer.stop()
    commits = [look.at for look in observer.seen if look.rows]
    slots = int(60 * calm_minutes / KILL_EVERY_S)
    calm = [replayer.started_at + WARM_S + n * KILL_EVERY_S for n in range(slots)]
    with duckdb.connect() as db:
        open_views(db, source, pace.events)
        verdict = compare(db, QUERIES[QUERY], answer, contestant.watch(QUERY, output).files())
    shutil.rmtree(folder, ignore_errors=True)
    return Found(
        engine=contestant.name,
        minutes=minutes,
        undisturbed_s=tuple(_longest_pause(commits, since) for since in calm),
        recoveries_s=tuple(_longest_pause(commits, since) for since in killed_at),
        expected=verdict.expected,
        lost=verdict.missing,
        doubled=verdict.extra,
        load=load,
    )


def _longest_pause(commits: Sequence[float], since: float) -> float:
    """Seconds; a pause that goes on at the end counts as a whole."""
    times = [since, *(at for at in commits if at > since)]
    begun = [at for at in times if at < since + KILL_EVERY_S]
    return max(after - at for at, after in zip(begun, [*times[1:], math.inf], strict=False))


def _executors() -> list[psutil.Process]:
    """Executors of the cluster that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(_EXECUTOR in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
