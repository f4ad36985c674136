"""Starts an engine as a process of its own and meters the CPU of its whole tree from outside."""

from __future__ import annotations

import bisect
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from benchmarks.metered_child import ProcessMeter, run_metered
from benchmarks.runner import Spec, Trace

_TIMEOUT_S = 600


class CpuMeter(ProcessMeter):
    """CPU-seconds (user and system) of a process and all its descendants, over time.

    Children that have ended count through their parents once those have waited for them.
    """

    def __init__(self, pid: int) -> None:
        self.times: list[float] = []
        self.seconds: list[float] = []
        super().__init__(pid)

    def at(self, moment: float) -> float:
        """CPU-seconds up to a wall-clock moment, interpolated."""
        right = min(bisect.bisect_left(self.times, moment), len(self.times) - 1)
        left = max(right - 1, 0)
        span = self.times[right] - self.times[left]
        share = 0.0 if span == 0 else min(1.0, (moment - self.times[left]) / span)
        return self.seconds[left] + share * (self.seconds[right] - self.seconds[left])

    def observe(self, tree: Sequence[psutil.Process]) -> None:
        total = 0.0
        for process in tree:
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.Error:
                continue
        self.times.append(time.time())
        self.seconds.append(max([total, *self.seconds[-1:]]))


def run_engine(spec: Spec) -> tuple[Trace, CpuMeter, float]:
    """Runs to the end; returns what happened, the meter, and when the process was started."""
    folder = Path(spec.folder)
    folder.mkdir(parents=True)
    started = time.time()
    meter = run_metered(
        "benchmarks.runner",
        asdict(spec),
        folder / "spec.json",
        CpuMeter,
        who=spec.engine,
        timeout_s=_TIMEOUT_S,
    )
    return Trace(**json.loads(spec.result.read_text(encoding="utf-8"))), meter, started


def end_on_sigterm() -> None:
    """Lets SIGTERM end this process with its clean-up: the engine's process and the scratch folder
    go, too. A second SIGTERM does not break the clean-up off."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which children would inherit
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)
