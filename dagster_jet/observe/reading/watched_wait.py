"""Waits for a job's end, with a progress line in the terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dagster_jet.observe.reading.run_progress import RunProgress
from dagster_jet.observe.reading.terminal_line import DRAW_EVERY_S, terminal_line


def wait(
    done: threading.Event,
    timeout: float | None,
    progress: Callable[[], RunProgress],
    *,
    shows: bool,
) -> bool:
    """Waits for `done`; returns whether it is set.

    The waiting thread draws the line: no other thread is needed, and the line ends before any later
    output, errors too.

    Args:
        progress: progress of the job that is waited for.
        shows: False: draws no line.
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
