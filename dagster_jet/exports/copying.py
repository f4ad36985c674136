"""Copies the data of a snapshot from one map to another, in portions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.snapshot.manifest import ChunkSet, Manifest, checksum
from dagster_jet.snapshot.storage.chains import read_index
from dagster_jet.snapshot.storage.chunks import BATCH_BYTES, ChunkMap, index_key
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import MapKey
from dagster_jet.system.failpoint import fail_point

Rename = Callable[[ChunkSet, int], str]
"""Chunk set and shard to the new name of the set."""


def copy_snapshot(
    source: SnapshotStore,
    target: SnapshotStore,
    manifest: Manifest,
    changed: Callable[[Manifest], Manifest] = lambda copied: copied,
    rename: Rename | None = None,
) -> tuple[Manifest, int]:
    """Copies a snapshot: its chunk sets, then its manifest.

    The copied manifest may have other bytes than the original, even with equal content: this
    version writes fields that an older one did not have.

    Args:
        source: the store of the original.
        target: the store of the copy.
        manifest: the original's manifest.
        changed: makes the copy's manifest from the one that names the copied sets.
        rename: see `copy_chunk_sets`.

    Returns:
        The copy's manifest and the checksum of its stored bytes.

    Raises:
        SnapshotInvalidError: a part of it is missing or damaged.
    """
    copied = changed(copy_chunk_sets(source.chunks, target.chunks, manifest, rename))
    return copied, target.write(copied)


def copy_chunk_sets(
    source: ChunkMap, target: ChunkMap, manifest: Manifest, rename: Rename | None = None
) -> Manifest:
    """Copies every chunk set of a snapshot, and returns the manifest that names the copies.

    Copies whole chains byte by byte, including superseded chunks. Every chunk is verified against
    its index, and every index against the manifest, so a copy is never worse than its source. About
    `BATCH_BYTES` are in memory at most. A crash inside leaves chunks that nothing names.

    Args:
        rename: None: the copies have the names of their sources.

    Raises:
        SnapshotInvalidError: a chunk or an index is missing, or fails verification.
        StoreError: a member did not take a batch.
    """
    fail_point("copy.before")
    shards = {
        vertex: tuple(
            tuple(
                _copied(source, target, manifest, vertex, one, rename and rename(one, shard))
                for one in chain
            )
            for shard, chain in enumerate(chains)
        )
        for vertex, chains in manifest.shards.items()
    }
    fail_point("copy.after")
    return replace(manifest, shards=shards)


def _copied(
    source: ChunkMap,
    target: ChunkMap,
    manifest: Manifest,
    vertex: str,
    chunk_set: ChunkSet,
    name: str | None,
) -> ChunkSet:
    name = name or chunk_set.name
    count = manifest.partition_count
    (data,) = source.get_all([index_key(chunk_set.name, count)], every_replica=True)
    entries = [
        (partition, digest)
        for partition, rows, digest, _ in read_index(chunk_set, data, vertex)["chunks"]
        if rows
    ]
    assert data is not None
    per_chunk = max(1, chunk_set.bytes // max(1, len(entries)))
    for portion in _portions(entries, max(1, BATCH_BYTES // per_chunk)):
        keys = [MapKey(partition, chunk_set.name) for partition, _ in portion]
        bodies = source.get_all(keys, every_replica=True)
        items = []
        for (partition, digest), body in zip(portion, bodies, strict=True):
            if body is None or checksum(body) != digest:
                raise SnapshotInvalidError(
                    f"the state chunk of partition {partition} in {chunk_set.name!r} is "
                    f"{'missing' if body is None else 'not the one that was acknowledged'}.",
                    job=manifest.job,
                    stage=vertex,
                    cure="Run 'dagster-jet store verify', or take another snapshot.",
                )
            items.append((MapKey(partition, name), body))
        target.put_all(items)
    target.put_all([(index_key(name, count), data)])
    return replace(chunk_set, name=name)


def _portions(entries: list[tuple[int, int]], size: int) -> Iterator[list[tuple[int, int]]]:
    for begin in range(0, len(entries), size):
        yield entries[begin : begin + size]
