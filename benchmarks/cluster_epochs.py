"""Small epochs on a standalone cluster of two workers of one core, with Redis members: ours and
Structured Streaming take turns on the same cluster."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import count_case, interleaved, rollup_case
from benchmarks.data import Dataset
from benchmarks.store_places import Servers
from tests.integration.standalone import standalone

ROWS = 1_000
"""Rows per file; one file is an epoch and a trigger."""
ENGINES = (interleaved.OURS, interleaved.PEER)
CASES = {"one": count_case.CASE, "three": rollup_case.CASE}
DATA = Dataset(files=36, rows_per_file=ROWS, rows_per_ms=1)
WARM_UP = 14
"""Epochs."""


def run(folder: Path, *, rounds: int, only: str, console: Console) -> dict[str, Any]:
    """Runs the engines in turn, checks the rows, and returns the slots by number of stages."""
    found: dict[str, Any] = {}
    table = Table("stages", "engine", "epoch median ms", "mean ms", "load")
    with Servers() as members, standalone(folder / "spark") as settings:
        for name, case in CASES.items():
            if only not in (name, "both"):
                continue
            regime = interleaved.Regime(
                case=case,
                data=DATA,
                ours_rows_per_epoch=ROWS,
                peer_rows_per_epoch=ROWS,
                warm_up_rows=WARM_UP * ROWS,
                spark=settings,
                members=members.urls,
            )
            for number in range(rounds):
                for engine in ENGINES:
                    members.clear()
                    slot = interleaved.run_slot(engine, regime, folder / "slot")
                    slot = replace(slot, steady_cpu_s_per_m=0.0, total_cpu_s_per_m=0.0)
                    found.setdefault(name, []).append({"round": number, **asdict(slot)})
                    cells = (slot.epoch_median_ms, slot.epoch_mean_ms)
                    table.add_row(name, engine, *(f"{ms:.0f}" for ms in cells), f"{slot.load:.1f}")
    console.print(table)
    return found
