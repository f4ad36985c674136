"""Snapshots of a local job in the store's members, so that another process can go on from them."""

from __future__ import annotations

import pickle
from contextlib import suppress
from dataclasses import dataclass

from dagster_jet.core.saved_entry import SavedEntry
from dagster_jet.engine.local.snapshots import Ended, Snapshot
from dagster_jet.errors import StoreError
from dagster_jet.store import MapKey, Store

_LATEST = "latest"


@dataclass(frozen=True)
class _Header:
    """What ``latest`` holds: the snapshot without its entries, and where those are."""

    snapshot_id: int
    chunks: tuple[tuple[str, MapKey], ...]
    """(vertex, key of a chunk). A vertex without entries has none."""
    vertices: tuple[str, ...]
    ended: dict[str, Ended]
    partition_count: int | None = None
    """Headers of older versions do not have it."""


class StoredSnapshots:
    """Keeps the newest snapshot of one job in a map of the store, one chunk per vertex and
    partition.

    One process at a time runs a local job: nothing here keeps a second one out.
    """

    def __init__(self, store: Store, job: str) -> None:
        self._map = store.map(f"local_jobs/{job}")
        self._latest = self._map.key(_LATEST)

    def put(self, snapshot: Snapshot) -> None:
        """Writes the chunks, then the header that names them: the decision point.

        After a crash here: before the header, `latest` is the snapshot before; chunks that nothing
        names are written over by the next attempt.
        """
        before = self._header()
        old = set() if before is None else {key for _, key in before.chunks}
        chunks: dict[tuple[str, MapKey], list[SavedEntry]] = {}
        for vertex, entries in snapshot.entries.items():
            for entry in entries:
                partition = (entry.partition or 0) % self._map.partition_count
                name = f"{snapshot.snapshot_id}/{vertex}/{entry.partition}"
                key = MapKey(partition, name)
                if key in old:
                    # Crash window: a job that went on from an older snapshot comes to this id
                    # again, and until the decision the header names the chunks of the first.
                    key = MapKey(partition, f"again/{name}")
                chunks.setdefault((vertex, key), []).append(entry)
        self._map.put_all({key: pickle.dumps(part) for (_, key), part in chunks.items()})
        header = _Header(
            snapshot.snapshot_id,
            tuple(chunks),
            tuple(snapshot.entries),
            dict(snapshot.ended),
            snapshot.partition_count,
        )
        # Decision point.
        self._map.put_all({self._latest: pickle.dumps(header)})
        if old:
            with suppress(StoreError):  # garbage, found by nobody
                self._map.delete_all(sorted(old))

    def latest(self) -> Snapshot | None:
        header = self._header()
        if header is None:
            return None
        entries: dict[str, list[SavedEntry]] = {vertex: [] for vertex in header.vertices}
        found = self._map.get_all([key for _, key in header.chunks])
        for (vertex, key), data in zip(header.chunks, found, strict=True):
            if data is None:
                raise StoreError(
                    f"snapshot {header.snapshot_id} lacks its chunk {key.name!r}.",
                    stage=vertex,
                    cure="Verify the store, or drop the job's snapshots to begin anew.",
                )
            entries[vertex] += pickle.loads(data)
        return Snapshot(
            header.snapshot_id,
            {v: tuple(saved) for v, saved in entries.items()},
            header.ended,
            header.partition_count,
        )

    def clear(self) -> None:
        """Forgets the job's state: the next run begins from the start."""
        header = self._header()
        if header is not None:
            self._map.delete_all([self._latest])
            self._map.delete_all([key for _, key in header.chunks])

    def _header(self) -> _Header | None:
        data = self._map.get(self._latest)
        if data is None:
            return None
        header = pickle.loads(data)
        assert isinstance(header, _Header)
        return header
