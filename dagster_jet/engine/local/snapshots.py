"""Snapshots of a local job: what they consist of, and where they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dagster_jet.core import DONE, Partitioning, SnapshotBarrier, SnapshotEntry
from dagster_jet.core.saved_entry import SavedEntry


@dataclass(frozen=True)
class Ended:
    """Instances that were through before the barrier came; they must not run again."""

    parallelism: int
    indices: frozenset[int]

    @property
    def all(self) -> bool:
        return len(self.indices) == self.parallelism


@dataclass(frozen=True)
class Snapshot:
    """One snapshot: the entries of every vertex, whatever instance saved them."""

    snapshot_id: int
    entries: Mapping[str, tuple[SavedEntry, ...]]
    ended: Mapping[str, Ended] = field(default_factory=dict)
    partition_count: int | None = None
    """By which keys have partitions in `entries`; None: an older version did not say."""

    def state(self, vertex: str) -> list[SnapshotEntry]:
        """The saved (key, value) entries of a vertex."""
        return [entry.load() for entry in self.entries[vertex]]


class Snapshots(Protocol):
    """Where snapshots are kept."""

    def put(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot whole, or raises and keeps nothing of it. The decision point.

        After a crash here: `latest` is this snapshot or the one before, never a part.
        """
        ...

    def latest(self) -> Snapshot | None:
        """The last one that was kept, whatever its id.

        A job that goes on from an older one comes to ids that another timeline has had.
        """
        ...


class MemorySnapshots:
    """Keeps the last few in this process's memory; a restart in the same process finds them."""

    def __init__(self, retained: int = 3) -> None:
        self._retained = retained
        self._kept: dict[int, Snapshot] = {}
        """In the order in which they were put."""

    def put(self, snapshot: Snapshot) -> None:
        kept = [old for old in self._kept.values() if old.snapshot_id != snapshot.snapshot_id]
        # In one step: other threads ask for the latest.
        self._kept = {s.snapshot_id: s for s in [*kept, snapshot][-self._retained :]}

    def latest(self) -> Snapshot | None:
        return next(reversed(self._kept.values()), None)

    def get(self, snapshot_id: int) -> Snapshot | None:
        return self._kept.get(snapshot_id)

    def __len__(self) -> int:
        return len(self._kept)


class SnapshotWriter:
    """The snapshot bucket of one tasklet; serialises what it is given at once.

    Its thread writes; the coordinator takes only after the barrier has come through here.
    """

    def __init__(self, partitioning: Partitioning) -> None:
        self._partitioning = partitioning
        self._entries: list[SavedEntry] = []

    def offer(self, item: object) -> bool:
        if isinstance(item, SnapshotEntry):
            self._entries.append(SavedEntry.of(item, self._partitioning))
        else:
            assert item is DONE or isinstance(item, SnapshotBarrier)
        return True

    def take(self) -> list[SavedEntry]:
        entries, self._entries = self._entries, []
        return entries
