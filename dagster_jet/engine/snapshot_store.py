"""A job's snapshots in the store: manifests, chunk sets, source journals; and their removal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from dagster_jet.core.failpoint import fail_point
from dagster_jet.errors import StoreError
from dagster_jet.snapshot.chains import read_chain
from dagster_jet.snapshot.chunks import (
    PARTITION_COLUMN,
    ChunkSetName,
    chunk_keys,
    write_chunk_set,
)
from dagster_jet.snapshot.manifest import ChunkSet, Manifest, validate_manifest
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.record import SnapshotRef
from dagster_jet.store import MapKey, Store, partition_id


class SnapshotStore:
    """Reads and writes under ``jobs/<job>/state``."""

    def __init__(self, store: Store, job: str) -> None:
        self._job = job
        self._partition_count = store.partition_count
        self._map = store.map(f"jobs/{job}/state")

    def load(self, ref: SnapshotRef) -> Manifest:
        """Raises `SnapshotInvalidError` unless it is exactly what the record names."""
        data = self._map.get(self._key(ref.manifest_name), every_replica=True)
        return validate_manifest(
            data, job=self._job, name=ref.manifest_name, expected_checksum=ref.manifest_checksum
        )

    def load_retained(self, refs: Iterable[SnapshotRef]) -> dict[int, Manifest]:
        return {ref.snapshot_id: self.load(ref) for ref in refs}

    def write(self, manifest: Manifest) -> None:
        self._map.put_all({self._key(manifest.name): manifest.to_bytes()})

    def read_journal(self, source: str, chain: tuple[ChunkSet, ...]) -> pa.Table | None:
        return read_chain(self._map, chain, vertex=source, partition_count=self._partition_count)

    def write_journal(
        self,
        source: str,
        epoch: RunEpoch,
        chain: tuple[ChunkSet, ...],
        table: pa.Table,
        *,
        is_base: bool,
    ) -> ChunkSet:
        """Appends to a source's journal, or writes it anew (`is_base`)."""
        assert epoch.snapshot_id is not None
        partition = partition_id(source, partition_count=self._partition_count)
        column = pa.array([partition] * table.num_rows, pa.int32())
        return write_chunk_set(
            self._map,
            ChunkSetName(source, epoch.snapshot_id, epoch.execution_id, 0, "driver"),
            table.append_column(PARTITION_COLUMN, column),
            [partition] if is_base else [],
            sequence=chain[-1].sequence + 1 if chain else 0,
            is_base=is_base,
            partition_count=self._partition_count,
        )

    def delete(self, manifests: Iterable[str], chunk_sets: Mapping[str, frozenset[str]]) -> None:
        """Removes garbage. Best effort: what is left is found at the next start."""
        try:
            fail_point("garbage.before")
            keys = [self._key(name) for name in manifests]
            for names in chunk_sets.values():
                for name in sorted(names):
                    keys += chunk_keys(self._map, name, self._partition_count)
            self._map.delete_all(keys)
            fail_point("garbage.after")
        except (StoreError, OSError):
            return

    def delete_unreferenced(self, execution_id: int, retained: Iterable[Manifest]) -> int:
        """What executions before `execution_id` left behind and no retained snapshot names."""
        manifests = list(retained)
        kept = {manifest.name for manifest in manifests}
        for manifest in manifests:
            for names in manifest.chunk_sets().values():
                kept |= names
        doomed = [
            key
            for key in self._map.keys("")
            if (name := key.name.removesuffix("/index")) not in kept
            and execution_of(name) < execution_id
        ]
        if doomed:
            self._map.delete_all(doomed)
        return len(doomed)

    def _key(self, name: str) -> MapKey:
        return MapKey.of(name, self._partition_count)


def execution_of(name: str) -> int:
    """Who wrote a manifest or a chunk set: a sleeping execution that wakes up must not touch its
    successor's."""
    # `manifest/<snapshot>-<execution>` or `<vertex>/<snapshot>-<execution>-<shard>-<attempt>`; a
    # stage may well be named "manifest".
    return int(name.rpartition("/")[2].split("-")[1])
