"""Snapshots of a local job, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.dag import DONE, Partitioning, SnapshotBarrier, SnapshotEntry
from dagster_jet.dag.saved_entry import SavedEntry


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
    partition_count: int
    """By which keys have partitions in `entries`."""
    ended: Mapping[str, Ended] = field(default_factory=dict)
    """By vertex; without those of which no instance was through."""

    def state(self, vertex: str) -> list[SnapshotEntry]:
        """The saved (key, value) entries of a vertex."""
        return [entry.load() for entry in self.entries[vertex]]


class MemorySnapshots:
    """The last few snapshots, for a restart in the same process.

    Args:
        retained: how many.
    """

    def __init__(self, retained: int = 3) -> None:
        self._retained = retained
        self._kept: dict[int, Snapshot] = {}
        """In the order in which they were put."""

    def put(self, snapshot: Snapshot) -> None:
        """Keeps a snapshot: the decision. What a subclass raises here discards it."""
        kept = [old for old in self._kept.values() if old.snapshot_id != snapshot.snapshot_id]
        # In one step: other threads ask for the latest.
        self._kept = {s.snapshot_id: s for s in [*kept, snapshot][-self._retained :]}

    def latest(self) -> Snapshot | None:
        """The last one that was kept, whatever its id.

        A job that goes on from an older one comes to ids that another timeline has had.
        """
        return next(reversed(self._kept.values()), None)

    def get(self, snapshot_id: int) -> Snapshot | None:
        """Returns a snapshot by its id; None if it is not kept (any more)."""
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
