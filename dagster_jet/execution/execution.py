"""Runs the loop of one execution, and ends the threads beside it."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from dagster_jet.errors import JetError
from dagster_jet.execution import loop
from dagster_jet.execution.epoch_driver import EpochDriver
from dagster_jet.execution.events import StageProgress
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.loop import Loop
from dagster_jet.execution.notifications import Emitted, Notification, Woken
from dagster_jet.execution.progress import Progress
from dagster_jet.execution.signals import Signals
from dagster_jet.execution.worker import Worker
from dagster_jet.exports.exporting import Exporting
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.protocol import Stop
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause

_ENDING_S = 10.0
"""Longest wait for the removal of staged output at a job's end. The next start repeats it."""


class Observer(loop.Observer, Protocol):
    """Tells others about the execution, on the loop's thread."""

    def close(self, view: CoordinatorView) -> None:
        """Keeps the last state; called once, after the last event."""


class Execution:
    """Runs until the coordinator stops. One instance per execution id; `jobs.wiring` makes it."""

    def __init__(
        self,
        signals: Signals,
        loop: Loop,
        epochs: EpochDriver,
        progress: Progress,
        observer: Observer,
        exporting: Exporting,
        failures: Failures,
        abort_own: Callable[[], None],
        resources: ExitStack,
    ) -> None:
        """
        Args:
            abort_own: aborts the output that this execution has staged and not committed.
            resources: closes whatever the execution has opened.
        """
        self._signals, self._loop, self._epochs, self._progress = signals, loop, epochs, progress
        self._observer, self._exporting = observer, exporting
        self._failures, self._abort_own, self._resources = failures, abort_own, resources
        signals.follow(lambda: loop.view)

    # --- what the job asks ----------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        """Number of acked epochs."""
        return self._epochs.epochs

    @property
    def shard_count(self) -> int:
        """Number of shards of each stateful stage."""
        return self._epochs.context.runtime.shard_count

    @property
    def running_ms(self) -> int | None:
        """Time since the first epoch could begin; None: it could not."""
        return self._loop.running_ms

    @property
    def undecided(self) -> str | None:
        """Why epochs of this execution were left without a snapshot; None if none were."""
        view = self._loop.view
        return view.last_failure if view.undecided_epochs else None

    @property
    def left_undecided(self) -> bool:
        """Whether epochs of this execution are in no decided snapshot."""
        return self._loop.view.undecided_epochs > 0

    @property
    def has_decided(self) -> bool:
        """Whether this execution has brought the job on by a snapshot."""
        newest = self.record.snapshot
        return newest is not None and newest.execution_id == self._signals.claimed.execution_id

    @property
    def record(self) -> ExecutionRecord:
        """The record as last agreed on in the store."""
        return self._signals.record()

    @property
    def failure(self) -> JetError | None:
        """The error that caused the Stop."""
        return self._failures.last

    def stages(self) -> dict[str, StageProgress]:
        """Totals per named stage as of the last acked epoch."""
        return self._progress.stages(self._loop.view)

    # --- the loop -------------------------------------------------------------------------------

    def run(self) -> Stop:
        """Runs to the end and returns how it ended, whatever went wrong."""
        signals = self._signals
        signals.stop.listen(lambda: signals.post(Woken()))
        signals.owner.listen(signals.post)
        self._exporting.follow(lambda: self._loop.view)
        try:
            self._loop.begin()
            while self._loop.ended is None:
                self._loop.receive(self._next_notification())
            if self._loop.ended.cause is StopCause.FENCED:
                signals.owner.fenced.set()  # from now on the lease is not renewed
            return self._loop.ended
        finally:
            self._close()

    def _next_notification(self) -> Notification | None:
        wait_ms = self._loop.wait_ms()
        try:
            return self._signals.inbox.get(timeout=None if wait_ms is None else wait_ms / 1000)
        except queue.Empty:
            return None

    def _close(self) -> None:
        signals = self._signals
        signals.stop.listen(None)
        signals.owner.listen(None)
        self._exporting.follow(None)
        signals.is_closing = True
        self._resources.close()
        while not signals.inbox.empty():
            last = signals.inbox.get()
            if isinstance(last, Emitted):
                self._observer.emit(last)
        self._observer.close(self._loop.view)

    def leave_nothing_open(self) -> None:
        """After a failure or a cancel: nobody may ever start the job again."""
        signals, end, newest = self._signals, self._loop.ended, self.record.snapshot
        is_last = end is not None and end.write_status and end.status is JobStatus.FAILED
        is_complete = newest is None or newest.is_all_committed
        if is_last and is_complete and not signals.owner.is_lost:
            worker = Worker(f"jet-end-{signals.job}", signals.post)
            worker.start(self._abort_own)
            worker.close(_ENDING_S)
