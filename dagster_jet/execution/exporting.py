"""What an execution shares with whoever exports its snapshots, on another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.record import SnapshotRef


class Exporting:
    """Of a job in this process, over all its executions. Safe from any thread.

    Attributes:
        garbage: held while a snapshot is copied: what retention drops meanwhile is deleted after
            that. Garbage that is not collected is found by the next start.
        wants_snapshot: the next epoch is to end in a snapshot, whenever the last one was.
    """

    def __init__(self) -> None:
        self.garbage = threading.Lock()
        self.wants_snapshot = False
        self._view: Callable[[], CoordinatorView] | None = None

    def follow(self, view: Callable[[], CoordinatorView] | None) -> None:
        """Has `view` show the coordinator of the execution that runs now; None: none does."""
        self._view = view

    def view(self) -> CoordinatorView | None:
        """The coordinator of the execution that runs now, as it is."""
        view = self._view
        return None if view is None else view()


def acked_epoch(view: CoordinatorView) -> int:
    """The last epoch that an execution has run: what its next snapshot contains at least."""
    record = view.record
    decided = record.snapshot.epoch_id if record is not None and record.snapshot is not None else 0
    return decided + view.undecided_epochs


def newest_committed(refs: tuple[SnapshotRef, ...]) -> SnapshotRef | None:
    """The newest snapshot of these whose phase 2 is certainly over; None: of none it is."""
    return next((ref for ref in refs if ref.committed), None)
