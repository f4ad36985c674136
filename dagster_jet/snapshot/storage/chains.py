"""Reads state back from the store: a shard's chain of chunk sets, whole or in portions.

A chunk counts if no newer set of the chain has its partition in full. The manifest verifies every
index, and the index every chunk.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.snapshot.manifest import ChunkSet, Manifest, checksum
from dagster_jet.snapshot.storage.chunks import INDEX_FORMAT, ChunkMap, index_key
from dagster_jet.store import MapKey


def read_chain(
    store: ChunkMap,
    chain: Sequence[ChunkSet],
    *,
    vertex: str,
    partition_count: int,
    wanted: frozenset[int] | None = None,
) -> pa.Table | None:
    """The rows of a chain, from the newest full chunk of each partition onwards; None if empty.

    Raises:
        SnapshotInvalidError: an index or a chunk is missing, has other rows, or is not the value
            that was acked; names vertex and partitions.
        StoreCorruptedError: no good copy of a chunk is left.
    """
    reader = ChainReader.open(
        store, chain, vertex=vertex, partition_count=partition_count, wanted=wanted
    )
    tables = list(reader.tables())
    return pa.concat_tables(tables, promote_options="default") if tables else None


@dataclass(frozen=True)
class _Needed:
    """A chunk that counts, as listed in the index of its set."""

    key: MapKey
    rows: int
    digest: int
    schema: pa.Schema


@dataclass(frozen=True)
class ChainReader:
    """Reads a chain in portions: first the indexes, then the chunks of some partitions at once."""

    store: ChunkMap
    vertex: str
    _needed: tuple[_Needed, ...]
    """Ordered by partition; within a partition the newest first."""

    @classmethod
    def open(
        cls,
        store: ChunkMap,
        chain: Sequence[ChunkSet],
        *,
        vertex: str,
        partition_count: int,
        wanted: frozenset[int] | None = None,
    ) -> ChainReader:
        """Reads the indexes. Raises the same errors as `read_chain`."""
        keys = [index_key(s.name, partition_count) for s in chain]
        indexes = store.get_all(keys, every_replica=True)
        needed: list[_Needed] = []
        complete: set[int] = set()
        for chunk_set, data in reversed(list(zip(chain, indexes, strict=True))):
            index = read_index(chunk_set, data, vertex)
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(index["schema"])))
            for partition, rows, digest, is_full in index["chunks"]:
                if partition in complete or (wanted is not None and partition not in wanted):
                    continue
                if is_full:
                    complete.add(partition)
                if rows:
                    key = MapKey(partition, chunk_set.name)
                    needed.append(_Needed(key, rows, digest, schema))
        in_order = sorted(needed, key=lambda chunk: chunk.key.partition)
        return cls(store, vertex, tuple(in_order))

    def schemas(self) -> list[pa.Schema]:
        """The distinct schemas of the chunks that count."""
        found: list[pa.Schema] = []
        for chunk in self._needed:
            if chunk.schema not in found:
                found.append(chunk.schema)
        return found

    def tables(self, rows_at_once: int | None = None) -> Iterator[pa.Table]:
        """The rows, all rows of a partition in one table.

        Args:
            rows_at_once: approximate rows per table, at least one partition; None: all in one.
        """
        portion: list[_Needed] = []
        rows = 0
        for _, of_partition in groupby(self._needed, key=lambda chunk: chunk.key.partition):
            chunks = list(of_partition)
            coming = sum(chunk.rows for chunk in chunks)
            if portion and rows_at_once is not None and rows + coming > rows_at_once:
                yield self._read(portion)
                portion, rows = [], 0
            portion += chunks
            rows += coming
        if portion:
            yield self._read(portion)

    def _read(self, chunks: Sequence[_Needed]) -> pa.Table:
        bodies = self.store.get_all([chunk.key for chunk in chunks], every_replica=True)
        missing = {c.key for c, body in zip(chunks, bodies, strict=True) if body is None}
        if missing:
            raise SnapshotInvalidError(
                f"{len(missing)} state chunks are missing from the store, "
                f"partitions {sorted({key.partition for key in missing})}.",
                stage=self.vertex,
                cure="Run 'dagster-jet store verify', or start from an older retained snapshot.",
            )
        tables = []
        for chunk, body in zip(chunks, bodies, strict=True):
            if body is None or checksum(body) != chunk.digest:
                raise SnapshotInvalidError(
                    f"the state chunk of partition {chunk.key.partition} in {chunk.key.name!r} is "
                    "not the one that was acknowledged.",
                    stage=self.vertex,
                    cure="Start from an older retained snapshot.",
                )
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), chunk.schema)
            if batch.num_rows != chunk.rows:
                raise SnapshotInvalidError(
                    f"partition {chunk.key.partition} has {batch.num_rows} rows, expected "
                    f"{chunk.rows}.",
                    stage=self.vertex,
                )
            tables.append(pa.Table.from_batches([batch]))
        # Promoted: a column's nullability may have changed. Combined: a filter of hundreds of small
        # chunks takes a hundred times as long.
        return pa.concat_tables(tables, promote_options="default").combine_chunks()


def read_state(store: ChunkMap, manifest: Manifest, vertex: str) -> pa.Table | None:
    """All rows of a vertex as of a snapshot, over all shards; None if there are none."""
    if vertex not in manifest.shards:
        raise SnapshotInvalidError(
            "the snapshot has no state of this name; it has state of: "
            f"{', '.join(sorted(manifest.shards))}.",
            job=manifest.job,
            stage=vertex,
        )
    tables = [
        read_chain(store, chain, vertex=vertex, partition_count=manifest.partition_count)
        for chain in manifest.shards[vertex]
    ]
    present = [table for table in tables if table is not None]
    return pa.concat_tables(present, promote_options="default") if present else None


def read_index(chunk_set: ChunkSet, data: bytes | None, vertex: str) -> dict[str, Any]:
    """Returns the index of a set after verifying it against the manifest.

    Raises:
        SnapshotInvalidError: it is missing, or another one.
        StoreMismatchError: a newer version has written it.
    """
    if data is None or checksum(data) != chunk_set.index_checksum:
        raise SnapshotInvalidError(
            f"the index of chunk set {chunk_set.name!r} is "
            f"{'missing' if data is None else 'not the one that was acknowledged'}.",
            stage=vertex,
            cure="Start from an older retained snapshot.",
        )
    index: dict[str, Any] = json.loads(data)
    check_format(f"chunk set {chunk_set.name!r}", index["format"], INDEX_FORMAT, stage=vertex)
    rows = sum(entry[1] for entry in index["chunks"])
    chunks = sum(1 for entry in index["chunks"] if entry[1])
    if (rows, chunks) != (chunk_set.rows, chunk_set.chunks):
        raise SnapshotInvalidError(
            f"chunk set {chunk_set.name!r} lists {chunks} chunks with {rows} rows, the manifest "
            f"{chunk_set.chunks} with {chunk_set.rows}.",
            stage=vertex,
        )
    return index
