"""A process of its own for whatever is measured, and a meter over it and all it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

_ROOT = Path(__file__).parent.parent


class EngineFailedError(Exception):
    """The engine's process did not come to its end; the message has the end of its log."""


class ProcessMeter:
    """Looks at a process and all its descendants again and again, until `stop`."""

    period_s = 0.1

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def observe(self, tree: Sequence[psutil.Process]) -> None:
        """One look; any of these may be gone by now."""
        raise NotImplementedError

    def _sample(self) -> None:
        while not self._stop.wait(self.period_s):
            try:
                tree = [self.root, *self.root.children(recursive=True)]
            except psutil.Error:
                return
            self.observe(tree)


M = TypeVar("M", bound=ProcessMeter)


def run_metered(
    module: str,
    order: Mapping[str, Any],
    argument: Path,
    meter_of: Callable[[int], M],
    *,
    who: str,
    timeout_s: float,
    python: str = sys.executable,
) -> M:
    """Runs `python -m module argument` to its end, in a process group of its own.

    Args:
        order: written to `argument` as JSON; the process's log goes to log.txt beside it.
        who: for messages.
        python: of the environment that the engine needs.

    Raises:
        EngineFailedError: it ended with an error.
    """
    argument.write_text(json.dumps(order), encoding="utf-8")
    log_path = argument.parent / "log.txt"
    with open(log_path, "wb") as log:
        child = subprocess.Popen(
            [python, "-m", module, str(argument)],
            cwd=_ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            meter = meter_of(child.pid)
            try:
                status = child.wait(timeout_s)
            finally:
                meter.stop()
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
    if status != 0:
        tail = log_path.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise EngineFailedError(f"{who} ended with {status}:\n{tail}")
    return meter
