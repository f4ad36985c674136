"""Ends the jobs of a process that ends without closing what runs them.

Jobs run on daemon threads. Without this a script that ends after `submit`, or after an exception,
would cut them off in the middle of an epoch. So at the end of the main thread they are asked for a
terminal snapshot. If a job then has not ended well, and nobody has asked for its result, the exit
code is 1: a scheduler takes 0 to mean that everything is written.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - its end is registered before ours, and runs later
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from weakref import WeakSet

from dagster_jet.jobs.pipeline_job import PipelineJob


@dataclass(eq=False)
class LeftOpen:
    """Jobs of one object; closed at the end of the process, if not before."""

    jobs: Mapping[str, PipelineJob]
    close: Callable[[], None]

    def __post_init__(self) -> None:
        _left_open.add(self)

    def is_closed(self) -> None:
        """Removes the object from those that the end of the process closes."""
        _left_open.discard(self)

    def end(self) -> list[str]:
        """Closes the object; returns the failures of jobs that no caller has read."""
        running = {name: job for name, job in self.jobs.items() if not job.done.is_set()}
        if running and all(job.is_released for job in running.values()):
            return []  # they decide no snapshot; whoever released them has said how they ended
        names = sorted(running)
        if names:
            _say(f"the program ends while {', '.join(names)} runs: a last snapshot is taken.")
        self.close()
        return [text for job in self.jobs.values() if (text := job.unread_failure())]


_left_open: WeakSet[LeftOpen] = WeakSet()
_process = os.getpid()
_exit_code = 0


def _end() -> None:
    global _exit_code
    if os.getpid() != _process:  # a fork has the threads of no job
        return
    for one in list(_left_open):
        for failure in one.end():
            _say(failure)
            _exit_code = 1


def _exit() -> None:
    if _exit_code and os.getpid() == _process:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)


def _say(text: str) -> None:
    print(f"dagster-jet: {text}", file=sys.stderr)


# `atexit` is too late: by then no thread pool takes work any more.
threading._register_atexit(_end)  # type: ignore[attr-defined]
atexit.register(_exit)
