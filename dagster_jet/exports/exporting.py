"""State that an execution shares with the thread that exports its snapshots."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.record import SnapshotRef


class Exporting:
    """Export state of a job in this process, across its executions. Thread-safe.

    Attributes:
        garbage: lock that is held while a snapshot is copied; snapshots dropped meanwhile are
            deleted afterwards. The next start collects remaining garbage.
        wants_snapshot: whether the next epoch must end in a snapshot, independent of the interval.
    """

    def __init__(self) -> None:
        self.garbage = threading.Lock()
        self.wants_snapshot = False
        self._view: Callable[[], CoordinatorView] | None = None

    def follow(self, view: Callable[[], CoordinatorView] | None) -> None:
        """Sets the function that returns the running execution's coordinator; None if none runs."""
        self._view = view

    def view(self) -> CoordinatorView | None:
        """Returns the coordinator of the running execution."""
        view = self._view
        return None if view is None else view()


def acked_epoch(view: CoordinatorView) -> int:
    """Returns the last acked epoch of an execution; its next snapshot contains at least it."""
    record = view.record
    decided = record.snapshot.epoch_id if record is not None and record.snapshot is not None else 0
    return decided + view.undecided_epochs


def newest_committed(refs: tuple[SnapshotRef, ...]) -> SnapshotRef | None:
    """Returns the newest snapshot whose output is certainly committed; None if there is none."""
    return next((ref for ref in refs if ref.is_all_committed), None)
