"""Memory of a process and everything it started, sampled from outside."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from benchmarks.metered_child import ProcessMeter

_MIB = 1024 * 1024


class MemoryMeter(ProcessMeter):
    """The sum over a process and its descendants, in MiB, over time.

    PSS where the kernel tells it (a page shared by several counts once in all), else RSS, which
    counts shared pages several times and is therefore never too low.
    """

    period_s = 0.25

    def __init__(self, pid: int) -> None:
        self.samples: list[tuple[float, float]] = []
        self.peak: dict[str, float] = {}
        """Memory by kind of process when their sum was highest."""
        self.measure = "pss"
        super().__init__(pid)

    @property
    def peak_mib(self) -> float:
        return max((mib for _, mib in self.samples), default=0.0)

    def observe(self, tree: Sequence[psutil.Process]) -> None:
        kinds: dict[str, float] = {}
        for process in tree:
            try:
                kind = "driver" if process == self.root else process.name()
                kinds[kind] = kinds.get(kind, 0.0) + self._bytes(process) / _MIB
            except psutil.Error:
                continue
        total = sum(kinds.values())
        if total > self.peak_mib:
            self.peak = {kind: round(mib) for kind, mib in kinds.items()}
        self.samples.append((time.time(), total))

    def _bytes(self, process: psutil.Process) -> int:
        if self.measure == "pss":
            try:
                pss = int(process.memory_full_info().pss)
            except (AttributeError, psutil.AccessDenied, NotImplementedError):
                pss = 0
            rss = int(process.memory_info().rss)
            if pss or not rss:
                return pss
            self.measure = "rss"
        return int(process.memory_info().rss)
