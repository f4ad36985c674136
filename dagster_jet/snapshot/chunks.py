"""State in the store: chunk sets, written incrementally by tasks and read back by partition.

A chunk set is what one shard adds at one snapshot: one chunk per logical partition that changed,
plus an index. A shard's chain of sets is bounded without ever rewriting everything at once: each
set carries the whole state of the partitions whose turn it is (one in `ROTATION`), so a set older
than `ROTATION` others is superseded. Bytes per snapshot follow what changed, plus 1/ROTATION.

A chunk is an Arrow record-batch message without schema (the index has it): small partitions stay
small. Checksums are verified twice, by the store's envelope per copy and against the index per
chunk, because a valid copy of the wrong value is still wrong.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.failpoint import fail_point
from dagster_jet.errors import SnapshotInvalidError, StoreMismatchError
from dagster_jet.snapshot.manifest import ChunkSet, Manifest, checksum
from dagster_jet.store import MapKey

PARTITION_COLUMN = "__partition"
ROTATION = 64
INDEX_FORMAT = 1


class ChunkMap(Protocol):
    """The part of the store's replicated map that snapshots need."""

    def put_all(self, items: Mapping[MapKey, bytes]) -> None: ...
    def get_all(self, keys: Sequence[MapKey]) -> list[bytes | None]: ...


@dataclass(frozen=True)
class ChunkSetName:
    """Who wrote a set, when: `<vertex>/<snapshot>-<execution>-<shard>-<attempt>`."""

    vertex: str
    snapshot_id: int
    execution_id: int
    shard: int
    attempt: str

    def __str__(self) -> str:
        return (
            f"{self.vertex}/{self.snapshot_id:012d}-{self.execution_id}-{self.shard}-{self.attempt}"
        )

    @classmethod
    def parse(cls, text: str) -> ChunkSetName:
        vertex, _, rest = text.rpartition("/")
        snapshot_id, execution_id, shard, attempt = rest.split("-", 3)
        return cls(vertex, int(snapshot_id), int(execution_id), int(shard), attempt)


def turn(partition: int, sequence: int) -> bool:
    """Is it this partition's turn to be written in full by the set with this sequence?"""
    return partition % ROTATION == sequence % ROTATION


def needs_base(chain: Sequence[ChunkSet], live_rows: int) -> bool:
    """True when rewriting the shard's whole state is cheaper than carrying its history on."""
    if not chain:
        return True
    return len(chain) >= 8 and sum(s.rows for s in chain) >= 8 * max(live_rows, 1)


def superseded(chain: Sequence[ChunkSet], sequence: int) -> int:
    """How many of the oldest sets nobody needs once the set `sequence` exists."""
    return sum(1 for s in chain if s.sequence <= sequence - ROTATION)


def write_chunk_set(
    store: ChunkMap,
    name: ChunkSetName,
    table: pa.Table,
    full_partitions: Iterable[int],
    *,
    sequence: int,
    is_base: bool,
    partition_count: int,
) -> ChunkSet:
    """Writes one set in one batch per member.

    Args:
        table: rows with `PARTITION_COLUMN`; for partitions in `full_partitions` all their rows,
            for others what changed since the last snapshot.
        full_partitions: partitions whose older chunks this set supersedes, also empty ones.

    A crash inside leaves chunks that no manifest names; the next start deletes them.
    """
    fail_point("chunks.before")
    table = table.sort_by(PARTITION_COLUMN).combine_chunks()
    counts = table.group_by(PARTITION_COLUMN).aggregate([([], "count_all")])
    rows_of = dict(
        zip(
            counts.column(PARTITION_COLUMN).to_pylist(),
            counts.column("count_all").to_pylist(),
            strict=True,
        )
    )
    items: dict[MapKey, bytes] = {}
    full = set(full_partitions)
    entries: list[list[int]] = []
    offset = total_bytes = 0
    batches = table.to_batches()
    batch = batches[0] if batches else None
    for partition in sorted({*rows_of, *full}):
        rows = rows_of.get(partition, 0)
        digest = 0
        if rows and batch is not None:
            body = batch.slice(offset, rows).serialize().to_pybytes()
            offset += rows
            digest = checksum(body)
            total_bytes += len(body)
            items[MapKey(partition, str(name))] = body
        entries.append([partition, rows, digest, int(partition in full)])
    index = json.dumps(
        {
            "format": INDEX_FORMAT,
            "schema": base64.b64encode(table.schema.serialize().to_pybytes()).decode(),
            "chunks": entries,
        },
        separators=(",", ":"),
    ).encode()
    items[_index_key(str(name), partition_count)] = index
    store.put_all(items)
    fail_point("chunks.after")
    return ChunkSet(
        name=str(name),
        index_checksum=checksum(index),
        chunks=len(items) - 1,
        rows=table.num_rows,
        bytes=total_bytes + len(index),
        sequence=sequence,
        is_base=is_base,
    )


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
    if not chain:
        return None
    indexes = store.get_all([_index_key(s.name, partition_count) for s in chain])
    needed: list[tuple[MapKey, list[int]]] = []
    settled: set[int] = set()
    schemas: dict[str, pa.Schema] = {}
    for chunk_set, data in reversed(list(zip(chain, indexes, strict=True))):
        index = _read_index(chunk_set, data, vertex)
        schemas[chunk_set.name] = pa.ipc.read_schema(
            pa.py_buffer(base64.b64decode(index["schema"]))
        )
        for entry in index["chunks"]:
            partition, rows, _, is_full = entry
            if partition in settled or (wanted is not None and partition not in wanted):
                continue
            if is_full:
                settled.add(partition)
            if rows:
                needed.append((MapKey(partition, chunk_set.name), entry))
    bodies = store.get_all([key for key, _ in needed])
    missing = [key.partition for (key, _), body in zip(needed, bodies, strict=True) if body is None]
    if missing:
        raise SnapshotInvalidError(
            f"{len(missing)} state chunks are missing from the store, "
            f"partitions {sorted(set(missing))}.",
            stage=vertex,
            cure="Run 'dagster-jet store verify', or start from an older retained snapshot.",
        )
    tables = []
    for (key, (partition, rows, digest, _)), body in zip(needed, bodies, strict=True):
        if body is None or checksum(body) != digest:
            raise SnapshotInvalidError(
                f"the state chunk of partition {partition} in {key.name!r} is not the one that "
                "was acknowledged.",
                stage=vertex,
                cure="Start from an older retained snapshot.",
            )
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schemas[key.name])
        if batch.num_rows != rows:
            raise SnapshotInvalidError(
                f"partition {partition} has {batch.num_rows} rows, expected {rows}.", stage=vertex
            )
        tables.append(pa.Table.from_batches([batch]))
    # Promoted: a column may have become one that is never null, or have ceased to be.
    return pa.concat_tables(tables, promote_options="default") if tables else None


def chunk_keys(store: ChunkMap, name: str, partition_count: int) -> list[MapKey]:
    """All keys of one set, for deletion; just the index where that is unreadable."""
    index_key = _index_key(name, partition_count)
    data = store.get_all([index_key])[0]
    if data is None:
        return []
    entries = json.loads(data)["chunks"]
    return [*(MapKey(e[0], name) for e in entries if e[1]), index_key]


def _index_key(name: str, partition_count: int) -> MapKey:
    return MapKey.of(f"{name}/index", partition_count)


def _read_index(chunk_set: ChunkSet, data: bytes | None, vertex: str) -> dict[str, Any]:
    if data is None or checksum(data) != chunk_set.index_checksum:
        raise SnapshotInvalidError(
            f"the index of chunk set {chunk_set.name!r} is "
            f"{'missing' if data is None else 'not the one that was acknowledged'}.",
            stage=vertex,
            cure="Start from an older retained snapshot.",
        )
    index: dict[str, Any] = json.loads(data)
    if index["format"] > INDEX_FORMAT:
        raise StoreMismatchError(
            f"chunk set {chunk_set.name!r} has format {index['format']}.",
            stage=vertex,
            cure="Upgrade dagster-jet on this machine.",
        )
    rows = sum(entry[1] for entry in index["chunks"])
    chunks = sum(1 for entry in index["chunks"] if entry[1])
    if (rows, chunks) != (chunk_set.rows, chunk_set.chunks):
        raise SnapshotInvalidError(
            f"chunk set {chunk_set.name!r} lists {chunks} chunks with {rows} rows, the manifest "
            f"{chunk_set.chunks} with {chunk_set.rows}.",
            stage=vertex,
        )
    return index


def filter_partitions(table: pa.Table, partitions: Iterable[int]) -> pa.Table:
    """The rows of `table` that belong to `partitions`."""
    wanted = pa.array(sorted(partitions), type=table.schema.field(PARTITION_COLUMN).type)
    return table.filter(pc.is_in(table.column(PARTITION_COLUMN), value_set=wanted))


def read_state(store: ChunkMap, manifest: Manifest, vertex: str) -> pa.Table | None:
    """All rows of a vertex as of a snapshot, over all shards; None if it holds nothing."""
    if vertex not in manifest.shards:
        raise SnapshotInvalidError(
            f"there is no state of this name; there is: {', '.join(sorted(manifest.shards))}.",
            job=manifest.job,
            stage=vertex,
        )
    tables = [
        read_chain(store, chain, vertex=vertex, partition_count=manifest.partition_count)
        for chain in manifest.shards[vertex]
    ]
    present = [table for table in tables if table is not None]
    return pa.concat_tables(present, promote_options="default") if present else None
