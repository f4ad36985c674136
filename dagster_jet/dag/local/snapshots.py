"""Snapshots of a local job, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.dag import DONE, Partitioning, SnapshotBarrier, SnapshotEntry
from dagster_jet.dag.saved_entry import SavedEntry


@dataclass(frozen=True)
class Ended:
    """Instances that had ended before the barrier came; they must not run again."""

    parallelism: int
    indices: frozenset[int]

    @property
    def all(self) -> bool:
        return len(self.indices) == self.parallelism


@dataclass(frozen=True)
class Snapshot:
    """One snapshot: the entries of every vertex, from all its instances."""

    snapshot_id: int
    entries: Mapping[str, tuple[SavedEntry, ...]]
    partition_count: int
    """Number of partitions that `entries` are partitioned by."""
    ended: Mapping[str, Ended] = field(default_factory=dict)
    """By vertex; omits vertices without ended instances."""

    def state(self, vertex: str) -> list[SnapshotEntry]:
        """Return the saved (key, value) entries of a vertex."""
        return [entry.load() for entry in self.entries[vertex]]


class MemorySnapshots:
    """The last few snapshots, for a restart in the same process.

    Args:
        retained: number of snapshots to keep.
    """

    def __init__(self, retained: int = 3) -> None:
        self._retained = retained
        self._kept: dict[int, Snapshot] = {}
        """By id, in the order of `put`."""

    def put(self, snapshot: Snapshot) -> None:
        """Keep a snapshot: the decision point. An error raised by a subclass discards it."""
        kept = [old for old in self._kept.values() if old.snapshot_id != snapshot.snapshot_id]
        # Replaced atomically: other threads call `latest`.
        self._kept = {s.snapshot_id: s for s in [*kept, snapshot][-self._retained :]}

    def latest(self) -> Snapshot | None:
        """Return the snapshot that was kept last, whatever its id.

        A job restored from an older snapshot reuses ids of another timeline.
        """
        return next(reversed(self._kept.values()), None)

    def get(self, snapshot_id: int) -> Snapshot | None:
        """Return a snapshot by its id; None if it is not kept (any more)."""
        return self._kept.get(snapshot_id)

    def __len__(self) -> int:
        return len(self._kept)


class SnapshotWriter:
    """The snapshot bucket of one tasklet; serialises each entry when it is offered.

    Its own thread writes; the coordinator takes the entries only after the barrier.
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
