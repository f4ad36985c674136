"""Deployments: a standby of the next version of the code waits, the process that has the job ends
gracefully, and the standby goes on. The gap is between two commits of rows.

Each process writes the job's events with their time, so a gap has steps.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console
from rich.table import Table

from benchmarks.race.contestants import JET
from benchmarks.race.data import LAG_MS, open_views
from benchmarks.race.engine_process import EngineProcess
from benchmarks.race.engines.jet_versions import SINKS
from benchmarks.race.environments import prepare
from benchmarks.race.measures import percentile
from benchmarks.race.observer import Observer
from benchmarks.race.oracle import compare
from benchmarks.race.order import Order
from benchmarks.race.pace import Pace, Replayer
from benchmarks.race.queries import QUERIES

RATE = 1_000
WARM_S, EVERY_S, LAST_S = 60.0, 50.0, 20.0
"""A deployment begins every `EVERY_S`, after the first seconds, in which the job warms up."""
QUIET_S = 15.0
"""Without new rows for so long the job is done."""
_VERSIONS = replace(JET, module="jet_versions")
_ROWS = SINKS[0]
"""The sink that gets rows of every epoch."""


class NoHandoverError(Exception):
    """No standby waited when its turn came, or the job did not go on before the input ended."""


@dataclass(frozen=True)
class Handover:
    """Seconds of one deployment."""

    gap_s: float
    """Between the last commit of rows of the old process and the first one of the new."""
    steps_s: Mapping[str, float]
    """The gap's parts, and before them the time from SIGTERM to the old process's last commit."""


@dataclass(frozen=True)
class Found:
    """The figures of all deployments."""

    handovers: tuple[Handover, ...]
    pause_s: float
    """Longest pause between two commits of rows before the first handover, while a standby
    starts."""
    rows: Mapping[str, tuple[int, int, int]]
    """Numbers of expected, lost and doubled rows by sink."""
    load: float


def run(root: Path, folder: Path, *, deployments: int, console: Console) -> dict[str, Any]:
    """Raises: EngineFailedError, NoHandoverError; wrong rows are counted, not raised."""
    found = _run(root / ".cache" / "race", folder / "deployments", deployments)
    table = Table("deployment", *found.handovers[0].steps_s, "gap s")
    for number, one in enumerate(found.handovers, 1):
        table.add_row(str(number), *(f"{s:.2f}" for s in (*one.steps_s.values(), one.gap_s)))
    console.print(table)
    gaps = [one.gap_s for one in found.handovers]
    console.print(
        f"gap: median {percentile(gaps, 0.5):.1f} s, most {max(gaps):.1f} s; longest pause while "
        f"a standby starts {found.pause_s:.1f} s. Expected, lost, doubled rows: {dict(found.rows)}"
    )
    return {"rate": RATE, **asdict(found)}


def _run(cache: Path, folder: Path, deployments: int) -> Found:
    environment = prepare(_VERSIONS, cache / "environments")
    pace = Pace(RATE, WARM_S + EVERY_S * deployments + LAST_S)
    source = pace.write(cache)
    answers = {name: pace.stream.answer(cache, name) for name in SINKS}
    load = os.getloadavg()[0]
    shutil.rmtree(folder, ignore_errors=True)
    inbox, output = folder / "in", folder / "out"
    inbox.mkdir(parents=True)
    order = Order("", str(inbox), str(output), str(folder / "state"), LAG_MS)
    watches = {name: _VERSIONS.watch(name, output / name) for name in SINKS}
    observers = {name: Observer(watch, period_s=0.01) for name, watch in watches.items()}
    replayer, lives = Replayer(source, inbox), []

    def start(version: int) -> EngineProcess:
        told = replace(order, settings={"version": version}, standby=version > 0)
        life = EngineProcess(_VERSIONS, environment, told, folder / f"log-{version}.txt")
        lives.append(life)
        return life

    def wait_until(moment: float) -> None:
        while time.time() < moment:
            lives[-1].check()
            observers[_ROWS].check()
            time.sleep(0.02)

    asked_at = []
    try:
        old = start(0)
        for version in range(1, deployments + 1):
            wait_until(replayer.started_at + WARM_S + EVERY_S * (version - 1) - EVERY_S / 2)
            new = start(version)
            wait_until(replayer.started_at + WARM_S + EVERY_S * (version - 1))
            if "StandingBy" not in times(folder / f"log-{version}.txt"):
                raise NoHandoverError(f"version {version} does not stand by")
            asked_at.append(time.time())
            old.end()
            old = new
        while time.time() - max(*(o.last for o in observers.values()), replayer.ends_at) < QUIET_S:
            wait_until(time.time() + 0.1)
    finally:
        for life in lives:
            life.kill()
        replayer.stop()
        for observer in observers.values():
            observer.stop()
    commits = [look.at for look in observers[_ROWS].seen if look.rows]
    logs = [times(folder / f"log-{version}.txt") for version in range(deployments + 1)]
    handovers = tuple(
        handover(commits, at, old, new)
        for at, (old, new) in zip(asked_at, pairwise(logs), strict=True)
    )
    rows = {}
    for name in SINKS:
        with duckdb.connect() as db:
            open_views(db, source, pace.events)
            verdict = compare(db, QUERIES[name], answers[name], watches[name].files())
        rows[name] = verdict.expected, verdict.missing, verdict.extra
    calm = [at for at in commits if asked_at[0] - EVERY_S / 2 < at < asked_at[0]]
    pause_s = max(after - at for at, after in pairwise(calm))
    shutil.rmtree(folder, ignore_errors=True)
    return Found(handovers, pause_s, rows, load)


def times(log: Path) -> dict[str, float]:
    """The time of the first event of each kind."""
    times: dict[str, float] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if found := re.fullmatch(r"(\d+\.\d+) ([A-Z]\w+)", line):
            times.setdefault(found[2], float(found[1]))
    return times


def handover(
    commits: Sequence[float], asked_at: float, old: Mapping[str, float], new: Mapping[str, float]
) -> Handover:
    """Rows before the start of the new execution are the old one's: it leaves none undecided."""
    if "EpochCompleted" not in new or commits[-1] < new["EpochCompleted"]:
        raise NoHandoverError("no row was committed after the old process had ended")
    last = max(at for at in commits if at < new["ExecutionStarted"])
    first = min(at for at in commits if at > new["ExecutionStarted"])
    # In the order in which they come; the table has the time from one to the next.
    moments = {
        "SIGTERM to the last row": last,
        "the old run ends": old["ExecutionEnded"],
        "claim, analysis": new["PipelineAnalysed"],
        "restore": new["ExecutionStarted"],
        "first epoch": new["EpochCompleted"],
        "its commit": first,
    }
    befores = (asked_at, *moments.values())
    steps = {
        name: at - before for (name, at), before in zip(moments.items(), befores, strict=False)
    }
    return Handover(first - last, steps)
