"""Runs tasklets: all cooperative ones in turn on one thread, each other one on its own thread.

Source: Hazelcast Jet `TaskletExecutionService`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from dagster_jet.dag.tasklet import CallOutcome

_logger = logging.getLogger(__name__)

GRACE_S = 10.0
"""Time in seconds that the end of an execution waits for calls that block."""

_IDLE_MIN_S, _IDLE_MAX_S = 0.00005, 0.001
"""A thread without work pauses for increasing times, up to a millisecond."""


class Tasklet(Protocol):
    """A unit of work that is called until it is done."""

    @property
    def name(self) -> str: ...

    @property
    def is_cooperative(self) -> bool: ...

    def call(self) -> CallOutcome: ...

    def close(self) -> None:
        """End it early; called at most once more than needed, never concurrently with `call`."""
        ...


class CooperativeWorker:
    """Calls its tasklets in turn, one round at a time, so that a test can act as the thread."""

    def __init__(self, tasklets: Sequence[Tasklet]) -> None:
        self.tasklets = list(tasklets)
        self.called: Tasklet | None = None
        """The tasklet that is being called now."""

    def run_round(self) -> bool:
        """Call each tasklet once, drop those that are done; return True if any made progress."""
        progress = False
        for tasklet in list(self.tasklets):
            self.called = tasklet
            result = tasklet.call()
            if result is CallOutcome.DONE:
                self.tasklets.remove(tasklet)
            progress = progress or result is not CallOutcome.NONE
        self.called = None
        return progress

    def close(self) -> None:
        for tasklet in self.tasklets:
            self.called = tasklet
            _close(tasklet)
        self.called = None


class Scheduler:
    """Runs the tasklets of one execution on threads. The first error ends all of them.

    Args:
        tasklets: not started yet.
        on_round: called on the cooperative thread after each round while any tasklet lives;
            returns True if it made progress.
        on_end: called once, on the last thread, with the first error or None.
        name: prefix of the threads' names.
        grace_s: how long, after an error, the end waits for calls that block, in seconds.
    """

    def __init__(
        self,
        tasklets: Sequence[Tasklet],
        *,
        on_round: Callable[[], bool] = lambda: False,
        on_end: Callable[[BaseException | None], None] = lambda error: None,
        name: str = "jet",
        grace_s: float = GRACE_S,
    ) -> None:
        self._worker = CooperativeWorker([t for t in tasklets if t.is_cooperative])
        self._others = [t for t in tasklets if not t.is_cooperative]
        self._on_round, self._on_end, self._name = on_round, on_end, name
        self._grace_s = grace_s
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._alone: list[Tasklet] = []
        """Tasklets on their own threads that have not ended."""
        self._main: threading.Thread | None = None

    def start(self) -> None:
        """Start the threads; return at once."""
        self._alone = list(self._others)
        threads = [
            threading.Thread(
                target=self._run_alone, args=(tasklet,), name=f"{self._name}-{tasklet.name}"
            )
            for tasklet in self._others
        ]
        self._main = threading.Thread(target=self._run, name=f"{self._name}-cooperative")
        for thread in (*threads, self._main):
            thread.daemon = True
            thread.start()

    def step(self) -> bool:
        """Run one round of all tasklets on this thread, in a fixed order, instead of `start`.

        Returns:
            False: the execution has ended.
        """
        if self._others:
            self._worker.tasklets += self._others
            self._others = []
        try:
            if not self._stop.is_set():
                self._worker.run_round()
                self._on_round()
        except BaseException as error:
            self._fail(error)
            self._worker.close()
            self._on_end(error)
            raise
        if self._worker.tasklets and not self._stop.is_set():
            return True
        self._worker.close()
        self._on_end(None)
        return False

    def stop(self, grace_s: float | None = None) -> None:
        """Ask all threads to close their tasklets and end; does not wait.

        Args:
            grace_s: how long to wait for calls that block; None: as after an error.
        """
        if grace_s is not None:
            self._grace_s = grace_s
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; return False after the timeout.

        The cooperative thread must end, too: it may be keeping a snapshot.
        """
        if self._main is None:
            return True
        self._main.join(timeout_s)
        blocking = self._worker.called
        if self._main.is_alive() and blocking is not None:
            _warn_of(blocking, "the cooperative thread")
        return not self._main.is_alive()

    # --- threads --------------------------------------------------------------------------------

    def _run(self) -> None:
        idle = _Idle(self._stop)
        try:
            while not self._stop.is_set():
                progress = self._worker.run_round()
                # Computed before the last round, which then sees the results of the ended tasklets.
                is_over = not self._worker.tasklets and not self._alone
                progress = self._on_round() or progress
                if is_over:
                    break
                idle.after(progress)
        except BaseException as error:  # noqa: BLE001 - after any error all threads must end
            self._fail(error)
        finally:
            self._worker.close()
            self._await_others()
            self._on_end(self._error)

    def _run_alone(self, tasklet: Tasklet) -> None:
        idle = _Idle(self._stop)
        try:
            while not self._stop.is_set():
                result = tasklet.call()
                if result is CallOutcome.DONE:
                    break
                idle.after(result is CallOutcome.MADE)
        except BaseException as error:  # noqa: BLE001 - after any error all threads must end
            self._fail(error)
        finally:
            _close(tasklet)
            with self._changed:
                self._alone.remove(tasklet)
                self._changed.notify_all()

    def _await_others(self) -> None:
        """Wait for them. A blocked call cannot be ended: its daemon thread closes its tasklet."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone, self._grace_s)
            blocking = list(self._alone)
        for tasklet in blocking:
            _warn_of(tasklet, "its thread")

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
        self._stop.set()


def _close(tasklet: Tasklet) -> None:
    """Close a tasklet; never raises: the others must be closed and the end reported, too."""
    try:
        tasklet.close()
    except BaseException:  # also SystemExit
        _logger.warning("%s could not be closed", tasklet.name, exc_info=True)


def _warn_of(tasklet: Tasklet, thread: str) -> None:
    _logger.warning("%s does not return from its callback; %s is abandoned", tasklet.name, thread)


class _Idle:
    """Pauses after rounds without progress; a stop ends the pause."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._pause_s = stop, 0.0

    def after(self, progress: bool) -> None:
        if progress:
            self._pause_s = 0.0
            return
        self._pause_s = min(_IDLE_MAX_S, max(_IDLE_MIN_S, 2 * self._pause_s))
        self._stop.wait(self._pause_s)
