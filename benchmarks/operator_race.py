"""Races each stateful operator against its counterpart at the peer's best trigger size."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import interleaved
from benchmarks.operators import MILLION, OPERATORS, OperatorRace
from benchmarks.windowed_count import best_triggers, sweep_triggers

SWEEP = (100_000, 250_000, 500_000, MILLION, 2 * MILLION, 4 * MILLION)


def run(
    folder: Path,
    *,
    names: Sequence[str],
    rows: int | None,
    rounds: int,
    peer_trigger: int | None,
    peer_variant: str,
    rows_per_epoch: int,
    console: Console,
) -> dict[str, Any]:
    """Runs the races and returns everything that was measured.

    Args:
        rows_per_epoch: ours, at most; the peer's own best size is its trigger.
    """
    result: dict[str, Any] = {}
    for name in names:
        operator = OPERATORS[name]
        operator = replace(operator, data=replace(operator.data, rows=rows or operator.data.rows))
        result[name] = _race_one(
            operator, folder, rounds, peer_trigger, peer_variant, rows_per_epoch, console
        )
    console.print(_table(result))
    return result


def _race_one(
    operator: OperatorRace,
    folder: Path,
    rounds: int,
    peer_trigger: int | None,
    peer_variant: str,
    rows_per_epoch: int,
    console: Console,
) -> dict[str, Any]:
    case, data = operator.case, operator.data
    variant = peer_variant or next(iter(case.queries))
    regime = interleaved.Regime(
        case=case,
        data=data,
        ours_rows_per_epoch=min(rows_per_epoch, data.rows // 4),
        peer_rows_per_epoch=0,
        warm_up_rows=data.rows // 4,
        peer_variant=variant,
    )
    result: dict[str, Any] = {"rows": data.rows, "variant": variant, "goal": operator.goal}
    if peer_trigger is None:
        sizes = tuple(size for size in SWEEP if 2 * size <= data.rows)
        tried = sweep_triggers(regime, sizes, folder, console)
        result["peer_trigger_sweep"] = tried
        # CPU-seconds decide: they are what a quiet machine's rows per second come from.
        peer_trigger = min(tried, key=lambda size: tried[size][1])
        if len(best_triggers(tried)) > 1:
            console.print(f"{case.name}: fastest and cheapest trigger differ; raced: the cheapest")
    regime = replace(regime, peer_rows_per_epoch=peer_trigger)
    done = interleaved.run_rounds(
        regime, folder, rounds, lambda text: console.print(case.name, text)
    )
    slots = [slot for slots in done for slot in slots]
    return {
        **result,
        "trigger": peer_trigger,
        "rows_per_epoch": regime.ours_rows_per_epoch,
        "ratios": {
            k: asdict(r) for k, r in interleaved.compare(done, undisturbed_only=False).items()
        },
        "medians": {
            engine: {
                measure: statistics.median(getattr(s, measure) for s in slots if s.engine == engine)
                for measure in ("steady_rows_per_s", "steady_cpu_s_per_m", "load")
            }
            for engine in (interleaved.OURS, interleaved.PEER)
        },
        "slots": interleaved.as_json(done),
    }


def _table(result: dict[str, Any]) -> Table:
    table = Table(
        "operator", "peer's trigger", "rows/s ours", "peer", "ratio", "goal",
        "CPU-s/M ours", "peer", "peer / ours", title="operators, steady state",
    )  # fmt: skip
    for name, found in result.items():
        ours, peer = found["medians"][interleaved.OURS], found["medians"][interleaved.PEER]
        speed, cpu = found["ratios"]["steady_rows_per_s"], found["ratios"]["steady_cpu_s_per_m"]
        table.add_row(
            name,
            f"{found['trigger']:,}",
            f"{ours['steady_rows_per_s']:,.0f}",
            f"{peer['steady_rows_per_s']:,.0f}",
            f"{speed['median']:.2f}",
            f"{found['goal']:.1f}",
            f"{ours['steady_cpu_s_per_m']:.2f}",
            f"{peer['steady_cpu_s_per_m']:.2f}",
            f"{1 / cpu['median']:.2f}",
        )
    return table
