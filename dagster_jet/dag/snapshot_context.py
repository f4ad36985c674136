"""Requests of an execution's coordinator to its tasklets.

The coordinator writes, tasklets read. Both fields are replaced as a whole and never modified, so a
tasklet on another thread sees either the old or the new request.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase1:
    """Take a snapshot."""

    snapshot_id: int
    terminal: bool = False
    export_only: bool = False
    """Only save: nothing is prepared and there is no phase 2."""


@dataclass(frozen=True)
class Phase2:
    """Result of a snapshot's decision."""

    snapshot_id: int
    success: bool


class SnapshotContext:
    """Shared by all tasklets of one execution on one machine.

    Args:
        next_id: the id of the first snapshot of this execution; each further one is greater by 1.
    """

    def __init__(self, next_id: int = 0) -> None:
        self.next_id = next_id
        self.phase1: Phase1 | None = None
        self.phase2: Phase2 | None = None
