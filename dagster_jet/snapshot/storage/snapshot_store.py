"""A job's snapshots in the store: manifests, chunk sets, source journals; and their removal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.errors import SnapshotInvalidError, StoreCorruptedError, StoreError
from dagster_jet.snapshot.manifest import (
    ChunkSet,
    ChunkSetTexts,
    Manifest,
    checksum,
    validate_manifest,
)
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.snapshot.storage.chains import read_chain, read_state
from dagster_jet.snapshot.storage.chunks import ChunkSetName, chunk_keys, write_chunk_set
from dagster_jet.snapshot.storage.journal_parts import JournalTurn
from dagster_jet.store import MapKey, Store
from dagster_jet.system.failpoint import fail_point


def state_map(job: str) -> str:
    """The map with a job's own snapshots."""
    return f"jobs/{job}/state"


class SnapshotStore:
    """Reads and writes under ``jobs/<job>/state``, or in the map of an export."""

    def __init__(self, store: Store, job: str, *, map_name: str | None = None) -> None:
        self._job = job
        self._partition_count = store.partition_count
        self.map_name = map_name if map_name is not None else state_map(job)
        """The map of the chunks, for tasks that read them."""
        self.chunks = store.map(self.map_name)
        """Chunks, their indexes and manifests."""
        # A job's own values count once its record names them, which was claimed before. Its write
        # fails after a change of the members, so a check of each value asks the same twice.
        self._new = store.map(self.map_name, check_writes=map_name is not None)
        self._texts = ChunkSetTexts()

    def load(self, ref: SnapshotRef) -> Manifest:
        """Raises `SnapshotInvalidError` unless the manifest is the one that the record names."""
        data = self.chunks.get(self._key(ref.manifest_name), every_replica=True)
        manifest = validate_manifest(
            data, job=self._job, name=ref.manifest_name, expected_checksum=ref.manifest_checksum
        )
        return manifest.as_of(ref)

    def load_retained(self, refs: Sequence[SnapshotRef]) -> Retained:
        """Loads the manifests. The newest must be whole; older damaged ones are reported.

        Raises:
            SnapshotInvalidError: the newest is missing, or not the one that the record names.
            StoreUnavailableError: members are away; nothing is known to be damaged.
        """
        manifests: dict[int, Manifest] = {}
        damaged: dict[int, str] = {}
        for ref in refs:
            try:
                manifests[ref.snapshot_id] = self.load(ref)
            except (SnapshotInvalidError, StoreCorruptedError) as error:
                if ref is refs[0]:
                    raise
                damaged[ref.snapshot_id] = str(error)
        return Retained(manifests, damaged)

    def write(self, manifest: Manifest) -> int:
        """Writes a manifest and returns its checksum, for the record. Called by one thread."""
        data = manifest.to_bytes(self._texts)
        self._new.put_all({self._key(manifest.name): data})
        return checksum(data)

    def read_state(self, manifest: Manifest, vertex: str) -> pa.Table | None:
        """The saved state of a stage; see `chains.read_state`."""
        return read_state(self.chunks, manifest, vertex)

    def read_journal(self, source: str, chain: tuple[ChunkSet, ...]) -> pa.Table | None:
        return read_chain(self.chunks, chain, vertex=source, partition_count=self._partition_count)

    def journal_turn(self, chain: tuple[ChunkSet, ...]) -> JournalTurn:
        """Content of the next set after a chain."""
        return JournalTurn.of(chain, self._partition_count)

    def write_journal(
        self, source: str, epoch: RunEpoch, rows: pa.Table, turn: JournalTurn
    ) -> ChunkSet:
        """Writes a set of a source's journal: new rows, and the parts whose turn it is."""
        assert epoch.snapshot_id is not None
        count = self._partition_count
        return write_chunk_set(
            self._new,
            ChunkSetName(source, epoch.snapshot_id, epoch.execution_id, 0, "driver"),
            turn.placed(rows, source, count),
            turn.full_partitions(source, count),
            sequence=turn.sequence,
            is_base=turn.is_base,
            partition_count=count,
        )

    def delete(self, manifests: Iterable[str], chunk_sets: Mapping[str, frozenset[str]]) -> None:
        """Deletes garbage. Best effort: the next start finds the rest."""
        try:
            fail_point("garbage.before")
            keys = [self._key(name) for name in manifests]
            for names in chunk_sets.values():
                for name in sorted(names):
                    keys += chunk_keys(self.chunks, name, self._partition_count)
            self.chunks.delete_all(keys)
            fail_point("garbage.after")
        except (StoreError, OSError):
            return

    def delete_unreferenced(self, execution_id: int, retained: Retained) -> int:
        """Deletes keys of executions before `execution_id` that no retained snapshot names.

        Returns their number. A damaged manifest, and everything not newer than it, stays while the
        record has it, because its content is not known.
        """
        kept = {manifest.name for manifest in retained.manifests.values()}
        for manifest in retained.manifests.values():
            for names in manifest.chunk_sets().values():
                kept |= names
        newest_damaged = max(retained.damaged, default=0)
        doomed = [
            key
            for key in self.chunks.keys("")
            if (name := key.name.removesuffix("/index")) not in kept
            and execution_of(name) < execution_id
            and snapshot_of(name) > newest_damaged
        ]
        if doomed:
            self.chunks.delete_all(doomed)
        return len(doomed)

    def _key(self, name: str) -> MapKey:
        return MapKey.of(name, self._partition_count)


@dataclass(frozen=True)
class Retained:
    """The snapshots that a record names, by id."""

    manifests: Mapping[int, Manifest]
    damaged: Mapping[int, str]
    """Reasons why manifests are not whole."""


def snapshot_of(name: str) -> int:
    """The snapshot for which a manifest or a chunk set was written; later ones may need it, too."""
    return int(name.rpartition("/")[2].split("-")[0])


def vertex_of(name: str) -> str:
    """The stage or source that wrote a chunk set, by the name that it had then."""
    return name.rpartition("/")[0]


def execution_of(name: str) -> int:
    """The execution that wrote a manifest or a chunk set. A paused one that wakes up must not touch
    its successor's."""
    # `manifest/<snapshot>-<execution>` or `<vertex>/<snapshot>-<execution>-<shard>-<attempt>`; a
    # stage may be named "manifest".
    return int(name.rpartition("/")[2].split("-")[1])
