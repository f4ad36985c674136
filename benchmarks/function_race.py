"""Races all ways to ask for a Python function with a state per key, ours and the peer's, at once.

A round has one slot of each way, in an order drawn at random. Ratios are of one round's slots.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import interleaved
from benchmarks.case import Case
from benchmarks.operators import MILLION, stateful_map
from benchmarks.operators.streams import Streams
from benchmarks.ratios import ratio

KEYS = 10_000
DEFAULT_ROWS = 4 * MILLION


@dataclass(frozen=True)
class Way:
    """One way to ask for it."""

    name: str
    engine: str
    case: Case
    variant: str = ""
    """Name of the peer's query."""


WAYS = (
    Way("map_stateful, per row", interleaved.OURS, stateful_map.CASE),
    Way("map_stateful, in batches, pandas", interleaved.OURS, stateful_map.IN_FRAMES),
    Way("map_stateful, in batches, NumPy", interleaved.OURS, stateful_map.IN_NUMPY),
    *(Way(name, interleaved.PEER, stateful_map.CASE, name) for name in stateful_map.CASE.queries),
)


def run(
    folder: Path,
    *,
    rows: int,
    rounds: int,
    rows_per_epoch: int,
    names: Sequence[str],
    console: Console,
) -> dict[str, Any]:
    """
    Args:
        rows_per_epoch: of both engines, at most.
        names: of the ways; none for all of them.
    """
    data = Streams(rows, keys=KEYS)
    ways = [way for way in WAYS if not names or way.name in names]
    slots: dict[str, list[interleaved.Slot]] = {way.name: [] for way in ways}
    order = random.Random(11)
    for number in range(1, rounds + 1):
        for way in order.sample(ways, len(ways)):
            size = min(rows_per_epoch, rows // 4)
            regime = interleaved.Regime(way.case, data, size, size, rows // 4, way.variant)
            slot = interleaved.run_slot(way.engine, regime, folder / "slot")
            slots[way.name].append(slot)
            console.print(way.name, interleaved.describe(f"round {number}", slot))
    console.print(_table(ways, slots))
    return {name: [asdict(slot) for slot in found] for name, found in slots.items()}


def _table(ways: list[Way], slots: dict[str, list[interleaved.Slot]]) -> Table:
    peers = [way.name for way in ways if way.engine == interleaved.PEER]
    headers = [f"/ {name}" for name in peers]
    table = Table("way", "rows/s", "CPU-s/M", *headers, title="a function with a state per key")
    for way in ways:
        speeds, cpu = (
            {name: [[getattr(slot, what)] for slot in found] for name, found in slots.items()}
            for what in ("steady_rows_per_s", "steady_cpu_s_per_m")
        )
        table.add_row(
            way.name,
            f"{statistics.median(x for (x,) in speeds[way.name]):,.0f}",
            f"{statistics.median(x for (x,) in cpu[way.name]):.2f}",
            *(f"{ratio(speeds[way.name], speeds[peer]).median:.2f}" for peer in peers),
        )
    return table
