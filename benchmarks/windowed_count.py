"""The race: a windowed count over 1,000 keys, in large epochs and in small ones."""

from __future__ import annotations

import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import count_case, interleaved
from benchmarks.data import Dataset

MILLION = 1_000_000
LARGE = interleaved.Regime(
    case=count_case.CASE,
    data=Dataset(files=200, rows_per_file=50_000, rows_per_ms=10),
    ours_rows_per_epoch=MILLION,
    peer_rows_per_epoch=MILLION,
    warm_up_rows=4 * MILLION,
)
LARGE_QUICK = replace(
    LARGE,
    data=Dataset(files=80, rows_per_file=50_000, rows_per_ms=10),
    warm_up_rows=2 * MILLION,
)
SMALL = interleaved.Regime(
    case=count_case.CASE,
    data=Dataset(files=180, rows_per_file=1000, rows_per_ms=1),
    ours_rows_per_epoch=1000,
    peer_rows_per_epoch=1000,
    warm_up_rows=90_000,
)
SMALL_QUICK = replace(
    SMALL, data=Dataset(files=120, rows_per_file=1000, rows_per_ms=1), warm_up_rows=60_000
)
SWEEP = (250_000, 500_000, MILLION, 2 * MILLION, 4 * MILLION)


def run(
    folder: Path,
    *,
    rounds: int,
    quick: bool,
    only: str,
    peer_trigger: int | None,
    console: Console,
) -> dict[str, Any]:
    """Runs the regimes and returns everything that was measured."""
    result: dict[str, Any] = {}
    if only in ("large", "both"):
        regime = LARGE_QUICK if quick else LARGE
        if peer_trigger is None:
            tried = sweep_triggers(regime, SWEEP[1:4] if quick else SWEEP, folder, console)
            result["peer_trigger_sweep"] = tried
            triggers = best_triggers(tried)
        else:
            triggers = {"chosen": peer_trigger}
        for why, size in triggers.items():
            best = replace(regime, peer_rows_per_epoch=size)
            title = f"large epochs, the peer at its {why} trigger of {size:,} rows"
            result[f"large, {why}"] = _race(title, best, folder, rounds, console)
    if only in ("small", "both"):
        regime = SMALL_QUICK if quick else SMALL
        result["small"] = _race("small epochs", regime, folder, rounds, console)
    return result


def sweep_triggers(
    regime: interleaved.Regime, sizes: tuple[int, ...], folder: Path, console: Console
) -> dict[int, list[float]]:
    """The peer's rows/s and CPU-seconds per million rows, by trigger size."""
    tried: dict[int, list[float]] = {}
    for size in sizes:
        peer = replace(regime, peer_rows_per_epoch=size)
        slot = interleaved.run_slot(interleaved.PEER, peer, folder / "slot")
        tried[size] = [slot.steady_rows_per_s, slot.steady_cpu_s_per_m]
        console.print(interleaved.describe(f"sweep, {size:,} rows per trigger", slot))
    return tried


def best_triggers(tried: dict[int, list[float]]) -> dict[str, int]:
    """Speed is raced against the peer's fastest size, cost against its cheapest; often one."""
    fastest = max(tried, key=lambda size: tried[size][0])
    cheapest = min(tried, key=lambda size: tried[size][1])
    if fastest == cheapest:
        return {"fastest and cheapest": fastest}
    return {"fastest": fastest, "cheapest": cheapest}


def _race(
    title: str, regime: interleaved.Regime, folder: Path, rounds: int, console: Console
) -> dict[str, Any]:
    done = interleaved.run_rounds(regime, folder, rounds, console.print)
    every = interleaved.compare(done, undisturbed_only=False)
    quiet = interleaved.compare(done, undisturbed_only=True)
    slots = [slot for slots in done for slot in slots]
    table = Table("measure", "ours", "peer", "ours / peer, all", "undisturbed slots", title=title)
    for name in every:
        medians = [
            statistics.median([getattr(s, name) for s in slots if s.engine == engine])
            for engine in (interleaved.OURS, interleaved.PEER)
        ]
        cells = [f"{m:,.0f}" if m > 100 else f"{m:.2f}" for m in medians]
        table.add_row(name, *cells, str(every[name]), f"{quiet[name]} n={quiet[name].rounds}")
    console.print(table)
    return {
        "rows": regime.data.rows,
        "ours_rows_per_epoch": regime.ours_rows_per_epoch,
        "peer_rows_per_epoch": regime.peer_rows_per_epoch,
        "ratios": {name: asdict(r) for name, r in every.items()},
        "ratios_undisturbed": {name: asdict(r) for name, r in quiet.items()},
        "slots": interleaved.as_json(done),
    }
