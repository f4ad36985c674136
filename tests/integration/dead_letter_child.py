"""Stateful functions that set rows aside, and the driver that is killed while it runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_jet import Pipeline, State, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.pipeline import LateDeadLetterStage

from . import child

SCHEMA = "k string, ts long, v long"
OUTPUT = "k string, ts long, n long, total long"


def balances(p: Pipeline, folder: Path, on_error: Any = "dead-letter") -> LateDeadLetterStage:
    """Per key how many values there were, and their sum; the state is changed before it raises."""

    def add(state: State[list[int]], row: dict[str, Any]) -> dict[str, Any]:
        state.value.append(row["v"])
        if row["v"] % 7 == 0:
            raise ValueError(f"{row.pop('v')} is bad")
        n, total = len(state.value), sum(state.value)
        # Of a type that does not fit: seen when all of the epoch's rows have been handed over.
        return {
            "k": row["k"],
            "ts": row["ts"],
            "n": n,
            "total": str(total) if row["v"] % 11 == 0 else total,
        }

    rows = p.read_from(
        sources.files(f"{folder}/in/left", format="json", schema=SCHEMA), name="rows"
    ).with_timestamps("ts", allowed_lag="500 ms", idle_timeout="0 ms")
    return rows.group_by("k").map_stateful(
        add, create=list, output_schema=OUTPUT, name="balances", on_error=on_error
    )


def beside(folder: Path) -> Pipeline:
    """Results and dead letters are both written by the stage's own tasks."""
    p = Pipeline("beside")
    stage = balances(p, folder)
    stage.dead_letter_to(sinks.files(f"{folder}/out/dead", format="json"), name="dead")
    stage.write_to(sinks.files(f"{folder}/out/balances", format="json"), name="balances_out")
    return p


def failing(folder: Path) -> Pipeline:
    """Pipeline `beside` without a sink for bad rows."""
    p = Pipeline("beside")
    stage = balances(p, folder, on_error="fail")
    stage.write_to(sinks.files(f"{folder}/out/balances", format="json"), name="balances_out")
    return p


def passed_on(folder: Path) -> Pipeline:
    """Pipeline whose results and dead letters are read by somebody else; a map takes dead letters
    as well."""
    p = Pipeline("passed_on")
    stage = balances(p, folder)
    stage.dead_letter_to(sinks.files(f"{folder}/out/dead", format="parquet"), name="dead")
    stage.dead_letter_to(sinks.map_entries("dead", key="position", value="raw"), name="dead_map")
    stage.write_to(sinks.files(f"{folder}/out/balances", format="json"), name="balances_out")
    stage.group_by("k").window(windows.tumbling("2 seconds")).aggregate(
        rows=agg.count(), name="counts"
    ).write_to(sinks.files(f"{folder}/out/counts", format="json"), name="counts_out")
    return p


PIPELINES = {"beside": beside, "passed_on": passed_on}


def main(folder: Path, order: dict[str, Any]) -> int:
    return child.main(folder, order, PIPELINES[str(order.pop("pipeline"))])
