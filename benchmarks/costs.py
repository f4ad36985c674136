"""Cost of our own promises: exactly once, more sinks, more state. Ours against ours, at defaults.

Each question has two orders. A round runs them in an order drawn at random, each in a process of
its own on the same files; the ratio is that of the round.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.costs_job import Order
from benchmarks.data import Dataset
from benchmarks.metered_child import EngineFailedError, run_metered
from benchmarks.process import CpuMeter
from benchmarks.ratios import ratio

PER_FILE = 20_000
KEYS = 50_000
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Question:
    """Two orders: the promise, and what it is compared with."""

    name: str
    promise: Order
    without: Order
    goal: str


def questions(folder: Path, files: int) -> list[Question]:
    """All of them, over the same rows; a state is filled first, with few keys and with many."""
    rows = Dataset(files, PER_FILE, rows_per_ms=10, keys=KEYS).write(folder / "data")
    few, many = (_all_keys(folder / "data", KEYS * times) for times in (1, 10))
    plain = Order((str(rows),), str(folder / "slot"), str(folder / "told.json"))
    stateful = replace(plain, is_stateful=True)
    return [
        Question(
            "exactly once against no guarantee", plain, replace(plain, guarantee="none"), ">= 0.95"
        ),
        Question("three sinks against one, all rows", replace(plain, sinks=3), plain, ">= 0.8"),
        Question(
            "three sinks against one, sums per key",
            replace(stateful, sinks=3),
            stateful,
            ">= 0.8",
        ),
        Question(
            f"state of {10 * KEYS:,} keys against {KEYS:,}, rows of {KEYS:,} keys",
            replace(stateful, inputs=(many, *stateful.inputs)),
            replace(stateful, inputs=(few, *stateful.inputs)),
            ">= 0.83 (epochs at most 1.2 times as long)",
        ),
    ]


def _all_keys(folder: Path, keys: int) -> str:
    """Files with each key once."""
    from benchmarks.data import T0_MS, line

    target = folder / f"keys-{keys}"
    target.mkdir(parents=True, exist_ok=True)
    for first in range(0, keys, PER_FILE):
        lines = [
            line(f"{key:09d}", T0_MS, 100) for key in range(first, min(first + PER_FILE, keys))
        ]
        (target / f"{first:09d}.json").write_text("".join(lines), encoding="ascii")
    return str(target)


def run(folder: Path, *, files: int, rounds: int, console: Console) -> dict[str, Any]:
    """Raises: EngineFailedError, also where a sink does not have the rows."""
    draw, result = random.Random(11), {}
    table = Table("question", "rows/s, ratio", "CPU, ratio", "goal", title="costs")
    for question in questions(folder, files):
        measured: list[dict[str, dict[str, float]]] = []
        for number in range(rounds):
            sides = [("promise", question.promise), ("without", question.without)]
            draw.shuffle(sides)
            measured.append({side: _slot(order) for side, order in sides})
            console.print(f"{question.name}, round {number + 1}: {_shown(measured[-1])}")
        rates, cpu = _ratio(measured, "rows_per_s"), _ratio(measured, "cpu_s_per_m")
        table.add_row(question.name, rates, cpu, question.goal)
        result[question.name] = {"rows_per_s": rates, "cpu": cpu, "rounds": measured}
    console.print(table)
    return result


def _ratio(measured: Sequence[Mapping[str, Mapping[str, float]]], figure: str) -> str:
    sides = ([[slot[side][figure]] for slot in measured] for side in ("promise", "without"))
    return str(ratio(*sides))


def _slot(order: Order) -> dict[str, float]:
    folder = Path(order.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    load = os.getloadavg()[0]
    meter = run_metered(
        "benchmarks.costs_job",
        asdict(order),
        folder / "order.json",
        CpuMeter,
        who=f"{order.guarantee}, {order.sinks} sinks",
        timeout_s=_TIMEOUT_S,
    )
    told = json.loads(Path(order.result).read_text(encoding="utf-8"))
    shutil.rmtree(folder, ignore_errors=True)
    epochs: list[tuple[float, int]] = told["epochs"]
    total = sum(rows for _, rows in epochs)
    _check(order, told, total)
    # The first epoch warms up. The others grow, and the last ones have most of the rows.
    measured = total - epochs[0][1]
    if not measured:
        raise EngineFailedError("All rows were in the first epoch: nothing is left to measure.")
    seconds = epochs[-1][0] - epochs[0][0]
    return {
        "rows_per_s": measured / seconds,
        "epoch_s": seconds / (len(epochs) - 1),
        "epochs": len(epochs),
        "cpu_s_per_m": 1e6 * meter.seconds[-1] / total,
        "load": load,
    }


def _check(order: Order, told: Mapping[str, Any], rows: int) -> None:
    """All sinks have the same number of rows, and as many as were read where none is folded."""
    written = set(told["written"])
    if len(written) != 1 or (not order.is_stateful and written != {rows}):
        raise EngineFailedError(f"{rows} rows were read, and written: {told['written']}")


def _shown(sides: Mapping[str, Mapping[str, float]]) -> str:
    return "; ".join(
        f"{side} {slot['rows_per_s']:,.0f} rows/s, {slot['cpu_s_per_m']:.2f} CPU-s/M, "
        f"epochs of {slot['epoch_s']:.2f} s, load {slot['load']:.1f}"
        for side, slot in sides.items()
    )
