"""Starts an engine as a process of its own and meters the CPU of its whole tree from outside."""

from __future__ import annotations

import bisect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil

from benchmarks.runner import Spec, Trace

_PERIOD_S = 0.1
_TIMEOUT_S = 600
ROOT = Path(__file__).parent.parent


class EngineFailedError(Exception):
    """The engine's process did not come to its end; the message has the end of its log."""


class CpuMeter:
    """CPU-seconds (user and system) of a process and all its descendants, over time.

    Children that have ended count through their parents once those have waited for them.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.times: list[float] = []
        self.seconds: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def at(self, moment: float) -> float:
        """CPU-seconds up to a wall-clock moment, interpolated."""
        right = min(bisect.bisect_left(self.times, moment), len(self.times) - 1)
        left = max(right - 1, 0)
        span = self.times[right] - self.times[left]
        share = 0.0 if span == 0 else min(1.0, (moment - self.times[left]) / span)
        return self.seconds[left] + share * (self.seconds[right] - self.seconds[left])

    def _sample(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            total = 0.0
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
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
    argument = folder / "spec.json"
    argument.write_text(json.dumps(asdict(spec)), encoding="utf-8")
    started = time.time()
    with open(folder / "log.txt", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.runner", str(argument)],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        meter = CpuMeter(child.pid)
        try:
            status = child.wait(_TIMEOUT_S)
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        finally:
            meter.stop()
    if status != 0:
        tail = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-3000:]
        raise EngineFailedError(f"{spec.engine} ended with {status}:\n{tail}")
    return Trace(**json.loads(spec.result.read_text(encoding="utf-8"))), meter, started
