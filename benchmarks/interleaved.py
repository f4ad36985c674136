"""Slots and rounds: ours, peer, peer, ours (or the other way round), each checked by the oracle."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from benchmarks.case import Case
from benchmarks.oracle import check
from benchmarks.process import CpuMeter, run_engine
from benchmarks.ratios import Ratio, ratio
from benchmarks.runner import Spec, Trace

OURS, PEER = "ours", "peer"
LOOP_TOLERANCE = 0.10


@dataclass(frozen=True)
class Slot:
    """One engine, once. `steady_*` leave out start-up and warm-up, `total_*` do not."""

    engine: str
    steady_rows_per_s: float
    steady_cpu_s_per_m: float
    total_rows_per_s: float
    total_cpu_s_per_m: float
    epoch_median_ms: float
    epoch_mean_ms: float
    epochs: int
    loop_ms: float
    load: float
    disturbed: bool = False


class Data(Protocol):
    """Seeded input files, the same for both engines."""

    @property
    def rows(self) -> int:
        """Rows of all sources, without sentinels."""
        ...

    @property
    def rows_per_file(self) -> int: ...

    @property
    def sources(self) -> int: ...

    def write(self, folder: Path) -> Path:
        """Writes the files, if they are not there, and returns their folder."""
        ...


@dataclass(frozen=True)
class Regime:
    """Settings of one race: the case, its data, rows per epoch of each engine, rows that only warm
    up."""

    case: Case
    data: Data
    ours_rows_per_epoch: int
    peer_rows_per_epoch: int
    warm_up_rows: int
    peer_variant: str = ""
    spark: Mapping[str, str] = field(default_factory=dict)
    members: Sequence[str] = ()

    def spec(self, engine: str, source: Path, folder: Path) -> Spec:
        rows = self.ours_rows_per_epoch if engine == OURS else self.peer_rows_per_epoch
        return Spec(
            engine=engine,
            case=self.case.name,
            source=str(source),
            folder=str(folder),
            rows_per_epoch=rows // self.data.sources,
            rows_per_file=self.data.rows_per_file,
            variant=self.peer_variant,
            spark=dict(self.spark),
            members=self.members,
        )


def run_slot(engine: str, regime: Regime, folder: Path) -> Slot:
    """Runs, checks, measures; the folder is removed unless the output is wrong."""
    loop_ms = cpu_loop_ms()
    load = os.getloadavg()[0]
    source = regime.data.write(folder.parent / "data")
    spec = regime.spec(engine, source, folder)
    shutil.rmtree(folder, ignore_errors=True)
    trace, meter, started = run_engine(spec)
    check(engine, regime.case, folder / "out", source)
    slot = _measure(engine, regime, trace, meter, started, loop_ms, load)
    shutil.rmtree(folder, ignore_errors=True)
    return slot


def _measure(
    engine: str,
    regime: Regime,
    trace: Trace,
    meter: CpuMeter,
    started: float,
    loop_ms: float,
    load: float,
) -> Slot:
    rows = regime.data.rows
    # Ends of epochs, not commits: ours are announced up to an epoch late, the last one at once.
    done = list(zip(trace.epoch_ends, accumulate(trace.epoch_rows), strict=True))
    first = next(end for end in done if end[1] >= regime.warm_up_rows)
    last = next(end for end in done if end[1] >= rows)
    steady_rows = max(1, last[1] - first[1])
    # Ends of epochs with input; the one that only closes the windows is no epoch of this size.
    ends = [e for e, n in zip(trace.epoch_ends, trace.epoch_rows, strict=True) if n > 1]
    seen, skip = 0, 0
    for number, n in enumerate(trace.epoch_rows):
        seen += n
        if seen >= regime.warm_up_rows:
            skip = number
            break
    steps = [1000 * (b - a) for a, b in zip(ends[skip:], ends[skip + 1 :], strict=False)]
    return Slot(
        engine=engine,
        steady_rows_per_s=steady_rows / max(1e-9, last[0] - first[0]),
        steady_cpu_s_per_m=1e6 * (meter.at(last[0]) - meter.at(first[0])) / steady_rows,
        total_rows_per_s=rows / (trace.done_at - started),
        total_cpu_s_per_m=1e6 * meter.at(trace.done_at) / rows,
        epoch_median_ms=statistics.median(steps) if steps else 0.0,
        epoch_mean_ms=statistics.mean(steps) if steps else 0.0,
        epochs=len(steps),
        loop_ms=loop_ms,
        load=load,
    )


def run_rounds(
    regime: Regime, folder: Path, rounds: int, tell: Callable[[str], None]
) -> list[list[Slot]]:
    """All slots, by round; a slot whose CPU loop was off is marked, not repeated."""
    order = random.Random(7)
    reference = min(cpu_loop_ms() for _ in range(5))
    done: list[list[Slot]] = []
    for number in range(1, rounds + 1):
        engines = [OURS, PEER, PEER, OURS] if order.random() < 0.5 else [PEER, OURS, OURS, PEER]
        slots = []
        for engine in engines:
            slot = run_slot(engine, regime, folder / "slot")
            off = abs(slot.loop_ms / reference - 1) > LOOP_TOLERANCE
            slot = Slot(**{**asdict(slot), "disturbed": off})
            slots.append(slot)
            tell(describe(f"round {number}", slot))
        done.append(slots)
    return done


def compare(rounds: list[list[Slot]], *, undisturbed_only: bool) -> dict[str, Ratio]:
    """Ratios as the issue asks: throughput ours/peer (>= 1), CPU and durations ours/peer (<= 1)."""

    def values(engine: str, name: str) -> list[list[float]]:
        return [
            [
                getattr(slot, name)
                for slot in slots
                if slot.engine == engine
                and getattr(slot, name) > 0
                and not (undisturbed_only and slot.disturbed)
            ]
            for slots in rounds
        ]

    names = [n for n in Slot.__dataclass_fields__ if n.startswith(("steady", "total", "epoch_"))]
    return {name: ratio(values(OURS, name), values(PEER, name)) for name in names}


def describe(label: str, slot: Slot) -> str:
    return (
        f"{label}: {slot.engine:<4} {slot.steady_rows_per_s:>11,.0f} rows/s, "
        f"{slot.steady_cpu_s_per_m:.2f} CPU-s/M, epoch {slot.epoch_median_ms:.0f} ms median, "
        f"{slot.epoch_mean_ms:.0f} mean ({slot.epochs}); total {slot.total_rows_per_s:,.0f} rows/s"
        f"; load {slot.load:.1f}" + (" DISTURBED" if slot.disturbed else "")
    )


def cpu_loop_ms() -> float:
    """A fixed piece of work: how fast is this machine at the moment?"""
    began = time.perf_counter()
    total = 0
    for number in range(2_000_000):
        total += number & 7
    return (time.perf_counter() - began) * 1000


def as_json(rounds: list[list[Slot]]) -> list[list[dict[str, Any]]]:
    return [[asdict(slot) for slot in slots] for slots in rounds]
