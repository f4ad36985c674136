"""Signals between the loop and the threads beside it, including the end of the execution."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dagster_jet.execution.events import (
    JobEvent,
    SnapshotFailed,
    SourceAvailable,
    SourceUnavailable,
)
from dagster_jet.execution.notifications import Emitted, Notification
from dagster_jet.execution.source_polling import Outage
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.protocol import Event, StopKind
from dagster_jet.snapshot.record import ExecutionRecord

_logger = logging.getLogger(__name__)


class WaitReports(Protocol):
    """Receives what an execution waits for; the lease shows it."""

    def retries(self, reason: str) -> object: ...

    def source_away(self, source: str, reason: str | None) -> None: ...


class RecordOwner(Protocol):
    """Owns the job's record on behalf of the execution."""

    @property
    def fenced(self) -> threading.Event:
        """Set once a newer execution is known to own the record."""

    @property
    def is_lost(self) -> bool:
        """Whether it can no longer decide."""

    @property
    def activity_tracker(self) -> WaitReports: ...

    def listen(self, listener: Callable[[Event], None] | None) -> None:
        """Has `listener` called on any thread once the record is lost."""


@dataclass
class Signals:
    """The loop's queue and shared questions of one execution. Thread-safe."""

    job: str
    claimed: ExecutionRecord
    """The record as the owner has won it for this execution."""
    owner: RecordOwner
    stop: StopSignal
    inbox: queue.SimpleQueue[Notification] = field(default_factory=queue.SimpleQueue)
    is_closing: bool = False
    """The loop has ended."""
    _view: Callable[[], CoordinatorView] = CoordinatorView

    def follow(self, view: Callable[[], CoordinatorView]) -> None:
        """Sets the function that returns the coordinator as it is."""
        self._view = view

    def post(self, notification: Notification) -> None:
        self.inbox.put(notification)

    def emit(self, event: JobEvent) -> None:
        """Has an event emitted on the loop's thread."""
        self.post(Emitted(event))

    def record(self) -> ExecutionRecord:
        """The record as last agreed on in the store."""
        return self._view().record or self.claimed

    def is_failing(self) -> bool:
        """Whether a failure ends the execution after the commits that are under way."""
        return self._view().is_failing

    def report_retried(self, reason: str) -> None:
        """Reports that a commit is retried."""
        self.owner.activity_tracker.retries(reason)
        failures = self._view().failures
        self.emit(SnapshotFailed(self.job, self.claimed.execution_id, reason, failures))

    def report_outage(self, outage: Outage, is_over: bool) -> None:
        """Reports that a source cannot be read, or can be read again."""
        if is_over:
            self.emit(SourceAvailable(self.job, outage.source, outage.since_ms))
            return
        _logger.warning("job %r waits for its source: %s", self.job, outage.reason)
        since_ms, reason = outage.since_ms, outage.reason
        self.emit(SourceUnavailable(self.job, outage.source, since_ms, reason))

    def gives_up_waiting(self) -> bool:
        """Whether a source that does not answer is not waited for any longer."""
        is_stopped = self.stop.kind not in (None, StopKind.COMPLETE)
        return is_stopped or self.owner.is_lost or self.is_closing
