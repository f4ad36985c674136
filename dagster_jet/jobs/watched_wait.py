"""Waiting for a job's end, with a line in the terminal that says how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dagster_jet.jobs.run_progress import RunProgress
from dagster_jet.jobs.terminal_line import DRAW_EVERY_S, terminal_line


def wait(
    done: threading.Event,
    timeout: float | None,
    progress: Callable[[], RunProgress],
    *,
    shows: bool,
) -> bool:
    """Waits for `done`; returns whether it is set.

    Whoever waits draws: no other thread is needed, and what follows the wait, an error too, finds
    the line at its end.

    Args:
        progress: of the run that is waited for.
        shows: False: waits in silence.
    """
    with terminal_line(shows) as line:
        if line is None:
            return done.wait(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not done.wait(_slice_s(deadline)):
                if deadline is not None and time.monotonic() >= deadline:
                    break
                line.draw(progress().line())
        finally:
            if line.was_drawn:
                line.end(progress().summary(is_over=done.is_set()))
        return done.is_set()


def _slice_s(deadline: float | None) -> float:
    if deadline is None:
        return DRAW_EVERY_S
    return max(0.0, min(DRAW_EVERY_S, deadline - time.monotonic()))
