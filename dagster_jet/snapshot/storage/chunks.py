"""State in the store: chunk sets, written incrementally by tasks. `chains` reads them back.

A chunk set holds one shard's changes at one snapshot: one chunk per logical partition that changed,
plus an index. Each set also holds the whole state of one in `ROTATION` partitions, in turn. So a
set that is `ROTATION` sets old is superseded, and a shard's chain is bounded without ever being
rewritten at once. Bytes per snapshot are the changes plus 1/ROTATION of the state.

A chunk is an Arrow record-batch message without schema (the index has it), so small partitions stay
small. Two checksums are verified, the envelope's per copy and the index's per chunk: a valid copy
may be of a wrong value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import reduce
from threading import Lock
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.snapshot.manifest import ChunkSet, checksum
from dagster_jet.store import MapKey, Payload
from dagster_jet.system.failpoint import fail_point

PARTITION_COLUMN = "__partition"
ROTATION = 64
INDEX_FORMAT = 1
_FEW_PARTITIONS = 8
BATCH_BYTES = 16 * 1024 * 1024
"""Approximate bytes per batch of a set; memory holds several copies of a batch."""
_BATCHES_AT_ONCE = 2

_COPIED_BYTES = 4 * 2**20
"""Bytes of a large table that are sorted at once; they fit into a processor's cache."""


class ChunkMap(Protocol):
    """The part of the store's replicated map that snapshots need."""

    def put_all(self, items: Iterable[tuple[MapKey, Payload]]) -> None: ...
    def get_all(
        self, keys: Sequence[MapKey], *, every_replica: bool = False
    ) -> list[bytes | None]: ...


@dataclass(frozen=True)
class ChunkSetName:
    """Origin of a chunk set: `<vertex>/<snapshot>-<execution>-<shard>-<attempt>`."""

    vertex: str
    snapshot_id: int
    execution_id: int
    shard: int
    attempt: str

    def __str__(self) -> str:
        return (
            f"{self.vertex}/{self.snapshot_id:012d}-{self.execution_id}-{self.shard}-{self.attempt}"
        )


def turn(partition: int, sequence: int) -> bool:
    """Whether the set with this sequence number has the partition in full."""
    return partition % ROTATION == sequence % ROTATION


def needs_base(chain: Sequence[ChunkSet], live_rows: int) -> bool:
    """True when rewriting the shard's whole state is cheaper than extending its chain."""
    if not chain:
        return True
    return len(chain) >= 8 and sum(s.rows for s in chain) >= 8 * max(live_rows, 1)


def superseded(chain: Sequence[ChunkSet], sequence: int) -> int:
    """Number of the oldest sets that are superseded once the set `sequence` exists."""
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
    """Writes one set from one table; see `ChunkSetWriter`.

    Args:
        table: rows with `PARTITION_COLUMN`; for partitions in `full_partitions` all their rows, for
            others the changes since the last snapshot.
        full_partitions: partitions whose older chunks this set supersedes, also empty ones.
    """
    writer = ChunkSetWriter(store, name, partition_count)
    writer.add(table)
    return writer.finish(full_partitions, sequence=sequence, is_base=is_base)


@dataclass
class ChunkSetWriter:
    """Writes one set in one batch per member, or in several if it is large.

    Chunks are serialised one at a time: the store copies each into its envelope before it takes the
    next, so the memory is reused. (Sealing late was measured too, and slower.) For a large set one
    batch is made while another is written and synced. A crash inside leaves chunks that nothing
    names; the next start deletes them.
    """

    store: ChunkMap
    name: ChunkSetName
    partition_count: int
    _schema: pa.Schema | None = None
    _waiting: list[tuple[pa.Table, Collection[int]]] = field(default_factory=list)
    _waiting_bytes: int = 0
    _entries: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Rows and checksum by partition, for all chunks made so far."""
    _bytes: int = 0

    def add(self, table: pa.Table, *, without: Collection[int] = ()) -> None:
        """Adds the rows of some partitions: all rows that the set has of them.

        Args:
            without: partitions whose rows are left out here.

        Raises:
            StoreError: a member did not take a batch; the set is given up.
        """
        if self._schema is None:
            fail_point("chunks.before")
            self._schema = table.schema
        self._waiting.append((table, without))
        self._waiting_bytes += table.nbytes
        if self._waiting_bytes >= _BATCHES_AT_ONCE * BATCH_BYTES:
            self._put(self._made())
            self._waiting, self._waiting_bytes = [], 0

    def finish(self, full_partitions: Iterable[int], *, sequence: int, is_base: bool) -> ChunkSet:
        """Writes the remaining rows and the index."""
        index = b""

        def rest() -> Iterator[tuple[MapKey, Payload]]:
            nonlocal index
            yield from self._made()
            index = self._index(frozenset(full_partitions))
            yield index_key(str(self.name), self.partition_count), index

        self._put(rest())
        fail_point("chunks.after")
        return ChunkSet(
            name=str(self.name),
            index_checksum=checksum(index),
            chunks=len(self._entries),
            rows=sum(rows for rows, _ in self._entries.values()),
            bytes=self._bytes + len(index),
            sequence=sequence,
            is_base=is_base,
        )

    def _put(self, items: Iterator[tuple[MapKey, Payload]]) -> None:
        """Writes in batches; if there are several, threads take turns at making the next one."""
        if self._waiting_bytes <= BATCH_BYTES:
            self.store.put_all(items)
            return
        making, is_over = Lock(), False

        def batch() -> Generator[tuple[MapKey, Payload]]:
            nonlocal is_over
            with making:  # held until the store has taken the batch, before it writes any
                size = 0
                while size < BATCH_BYTES and not is_over:
                    item = next(items, None)
                    if item is None:
                        is_over = True
                        return
                    size += len(item[1])
                    yield item

        def put_batches() -> None:
            nonlocal is_over
            while not is_over:
                with closing(batch()) as one:
                    try:
                        self.store.put_all(one)
                    except BaseException:
                        is_over = True  # the rest is not needed
                        raise

        with ThreadPoolExecutor(_BATCHES_AT_ONCE) as pool:
            for done in [pool.submit(put_batches) for _ in range(_BATCHES_AT_ONCE)]:
                done.result()

    def _made(self) -> Iterator[tuple[MapKey, Payload]]:
        """Chunks of the waiting tables."""
        for table, without in self._waiting:
            for partition, rows in _by_partition(table, without):
                assert partition not in self._entries
                body = memoryview(rows.serialize()).cast("B")  # unsigned, as OpenSSL requires
                self._entries[partition] = (rows.num_rows, checksum(body))
                self._bytes += len(body)
                yield MapKey(partition, str(self.name)), body

    def _index(self, full: frozenset[int]) -> bytes:
        assert self._schema is not None
        return json.dumps(
            {
                "format": INDEX_FORMAT,
                "schema": base64.b64encode(self._schema.serialize()).decode(),
                "chunks": [
                    [partition, *self._entries.get(partition, (0, 0)), int(partition in full)]
                    for partition in sorted({*self._entries, *full})
                ],
            },
            separators=(",", ":"),
        ).encode()


def _by_partition(
    table: pa.Table, without: Collection[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields the rows of each non-empty partition in their order, by partition.

    Rows of a large table are sorted a few megabytes at a time. The copy is serialised from the
    processor's cache, and the next copy reuses the memory.
    """
    if not table.num_rows:
        return
    table = table.combine_chunks()
    partitions = table.column(PARTITION_COLUMN).to_numpy()
    counts = np.bincount(partitions)
    copied, *more = table.to_batches()
    is_ordered = not more and ascends(partitions)
    copied_end = table.num_rows if is_ordered else 0
    if not is_ordered:
        # numpy sorts 16-bit integers by counting, in a fifth of the time.
        order = pa.array(np.argsort(partitions.astype(np.int16), kind="stable"))
    rows_copied = table.num_rows
    if table.nbytes > BATCH_BYTES:
        rows_copied = _COPIED_BYTES * table.num_rows // table.nbytes
    begin = copied_begin = 0
    for partition in np.flatnonzero(counts).tolist():
        rows = int(counts[partition])
        if partition in without:
            begin += rows
            continue
        if begin + rows > copied_end:
            places = order.slice(begin, max(rows, rows_copied))
            taken = pc.take(table, places, boundscheck=False)  # all are within the table
            copied = taken.combine_chunks().to_batches()[0]
            copied_begin, copied_end = begin, begin + copied.num_rows
            if copied.num_rows < rows:  # Arrow splits a text column at 2 GiB
                raise ValueError(f"partition {partition} is too large to store in one piece")
        yield partition, copied.slice(begin - copied_begin, rows)
        begin += rows


def chunk_keys(store: ChunkMap, name: str, partition_count: int) -> list[MapKey]:
    """All keys of one set, for deletion; none if its index is missing."""
    key_of_index = index_key(name, partition_count)
    data = store.get_all([key_of_index], every_replica=True)[0]
    if data is None:
        return []
    entries = json.loads(data)["chunks"]
    return [*(MapKey(e[0], name) for e in entries if e[1]), key_of_index]


def index_key(name: str, partition_count: int) -> MapKey:
    """Key of a set's index."""
    return MapKey.of(f"{name}/index", partition_count)


def filter_partitions(table: pa.Table, partitions: Iterable[int]) -> pa.Table:
    """The rows of `table` that belong to `partitions`. Record batches sorted by partition, such as
    local runs, give slices without a copy."""
    wanted = sorted(partitions)
    kept = [part for batch in table.to_batches() for part in _of_partitions(batch, wanted)]
    return pa.Table.from_batches(kept, table.schema)


def _of_partitions(batch: pa.RecordBatch, wanted: Sequence[int]) -> Iterator[pa.RecordBatch]:
    column = batch.column(batch.schema.get_field_index(PARTITION_COLUMN))
    values = column.to_numpy()
    if ascends(values):
        for one in wanted:
            rows = slice_between(batch, values, one, one + 1)
            if rows.num_rows:
                yield rows
    elif 0 < len(wanted) <= _FEW_PARTITIONS:
        # A comparison per partition costs a fraction of one hash-table lookup.
        yield batch.filter(reduce(pc.or_, (pc.equal(column, one) for one in wanted)))
    else:
        yield batch.filter(pc.is_in(column, value_set=pa.array(wanted, column.type)))


def ascends(values: np.ndarray) -> bool:
    """Whether the values are in ascending order; equal neighbours are allowed."""
    return bool((values[1:] >= values[:-1]).all())


def slice_between(
    batch: pa.RecordBatch, values: np.ndarray, low: int, high: int | None
) -> pa.RecordBatch:
    """The rows whose value is at least `low` and below `high`; the values must ascend."""
    # Bounds in the values' own type: for a wider type numpy would convert all values.
    first = int(np.searchsorted(values, values.dtype.type(low)))
    last = len(values) if high is None else int(np.searchsorted(values, values.dtype.type(high)))
    return batch.slice(first, last - first)
