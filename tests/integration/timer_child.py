"""Timers in processing time, which move and set each other, and the driver that is killed
meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, State, sinks, sources

from . import child

JOB = "alerts"
SCHEMA = "k string, v long"
COLUMNS = ("k", "n", "v", "timer", "due", "at")
AGAIN_MS = 700
Row = dict[str, Any]


def said(k: str, state: State[int], **more: Any) -> Row:
    state.value += 1
    row = {"k": k, "n": state.value, "at": state.now_ms, "v": None, "timer": None, "due": None}
    return {**row, **more}


def watch(state: State[int], row: Row) -> Row:
    """Sets one of three timers to `v` ms from now, or moves it."""
    state.set_timer(state.now_ms + row["v"], f"{row['v'] % 3}")
    return said(row["k"], state, v=row["v"])


def ring(state: State[int], key: Row, time_ms: int) -> Row:
    if state.timer == "0":
        state.set_timer(time_ms + AGAIN_MS, "again")
    return said(key["k"], state, timer=state.timer, due=time_ms)


def alerts(folder: Path, job: str = JOB, out: str = "out") -> Pipeline:
    p = Pipeline(job)
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema=SCHEMA), name="rows")
    rows.group_by("k").map_stateful(
        watch, create=int, on_timer=ring, timers="processing time",
        output_schema="k string, n long, v long, timer string, due long, at long", name="alerts",
    ).write_to(sinks.files(f"{folder}/{out}", format="json"), name="out")  # fmt: skip
    return p


def main(folder: Path, order: Row) -> int:
    return child.main(folder, order, alerts)
