"""An engine's process tree: started, metered from outside, killed as a whole."""

from __future__ import annotations

import bisect
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.metered_child import EngineFailedError, ProcessMeter
from benchmarks.race.contestants import Contestant
from benchmarks.race.environments import Environment
from benchmarks.race.order import Order

_ROOT = Path(__file__).parent.parent.parent
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Usage:
    """CPU time and bytes written of a process tree up to a moment."""

    cpu_s: float
    written_mb: float


class Meter(ProcessMeter):
    """CPU-seconds, bytes written to disks, and memory of a process and all its descendants.

    What a process that has ended had used still counts, as of the last look at it. Memory is PSS: a
    page that several processes share counts once.
    """

    _LOOKS_PER_MEMORY = 5

    def __init__(self, pid: int) -> None:
        self.times: list[float] = []
        self.usages: list[Usage] = []
        self.peak_mib = 0.0
        self._cpu: dict[tuple[int, float], float] = {}
        self._written: dict[tuple[int, float], int] = {}
        super().__init__(pid)

    def at(self, moment: float) -> Usage:
        """Usage up to a wall-clock moment, interpolated."""
        if not self.times:
            return Usage(0.0, 0.0)
        right = min(bisect.bisect_left(self.times, moment), len(self.times) - 1)
        left = max(right - 1, 0)
        span = self.times[right] - self.times[left]
        share = 0.0 if span == 0 else min(1.0, max(0.0, (moment - self.times[left]) / span))
        before, after = self.usages[left], self.usages[right]
        return Usage(
            before.cpu_s + share * (after.cpu_s - before.cpu_s),
            before.written_mb + share * (after.written_mb - before.written_mb),
        )

    def observe(self, tree: Sequence[psutil.Process]) -> None:
        memory = 0.0
        with_memory = len(self.times) % self._LOOKS_PER_MEMORY == 0
        for process in tree:
            try:
                key = (process.pid, process.create_time())
                times = process.cpu_times()
                self._cpu[key] = times.user + times.system
                self._written[key] = process.io_counters().write_bytes
                if with_memory:
                    memory += process.memory_full_info().pss / _MIB
            except (psutil.Error, OSError):
                continue
        self.peak_mib = max(self.peak_mib, memory)
        self.times.append(time.time())
        written = sum(self._written.values()) / 1e6
        self.usages.append(Usage(sum(self._cpu.values()), written))


class EngineProcess:
    """One life of an engine: from its start until it is killed."""

    def __init__(
        self, contestant: Contestant, environment: Environment, order: Order, log: Path
    ) -> None:
        self._label, self._log = contestant.label, log
        for folder in (order.output, order.state):
            Path(folder).mkdir(parents=True, exist_ok=True)
        told = log.with_suffix(".order.json")
        order.write(told)
        self.started_at = time.time()
        with open(log, "ab") as file:
            self._child = subprocess.Popen(
                [
                    str(environment.python),
                    "-m",
                    f"benchmarks.race.engines.{contestant.module}",
                    str(told),
                ],
                cwd=_ROOT,
                env={**environment.variables, "PYTHONPATH": str(_ROOT)},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.meter = Meter(self._child.pid)

    def check(self) -> None:
        """Raises: EngineFailedError: it has ended by itself, which an engine must not."""
        if self._child.poll() is not None:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-2500:]
            raise EngineFailedError(f"{self._label} ended with {self._child.returncode}:\n{tail}")

    def end(self) -> None:
        """SIGTERM to the engine's own process; it is not waited for."""
        self._child.terminate()

    def kill(self) -> float:
        """SIGKILL to the whole tree; returns when."""
        try:
            root = psutil.Process(self._child.pid)
            tree = [root, *root.children(recursive=True)]
        except psutil.Error:
            tree = []
        killed_at = time.time()
        for process in tree:
            try:
                process.kill()
            except psutil.Error:
                continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        psutil.wait_procs(tree, timeout=10)
        self.meter.stop()
        return killed_at
