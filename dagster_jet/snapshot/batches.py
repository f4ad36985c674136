"""Chunks on their way into the store, in batches: one is made while another is written and synced.

A batch is what the store takes before it writes any of it: chunks on one `Shelf`, whose memory is
used again for the next batch. (Sealing all chunks late was measured too, and slower.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import pyarrow as pa

from dagster_jet.snapshot.shelf import Shelf
from dagster_jet.store import MapKey, Payload

BATCHES_AT_ONCE = 2


class ChunkMap(Protocol):
    """The part of the store's replicated map that snapshots need."""

    def put_all(self, items: Iterable[tuple[MapKey, Payload]]) -> None: ...
    def get_all(self, keys: Sequence[MapKey]) -> list[bytes | None]: ...


@dataclass
class ChunkBatches:
    """Makes chunks of rows and puts them into the store."""

    store: ChunkMap
    schema: pa.Schema
    rows: Iterator[tuple[MapKey, pa.RecordBatch]]
    made: Callable[[MapKey, pa.RecordBatch, bytes | memoryview], None]
    """Is told of every chunk, in their order."""
    end: Callable[[], Iterable[tuple[MapKey, Payload]]]
    """What goes with the last batch, when all chunks are made."""
    _making: Lock = field(default_factory=Lock)
    _ahead: tuple[MapKey, pa.RecordBatch] | None = None
    """Taken from `rows`, but the shelf was full."""
    _is_over: bool = False

    def put(self, batch_bytes: int, *, several: bool) -> None:
        """
        Args:
            several: more than a batch is expected, so that it is worth threads.
        """
        if not several:
            self._put_batches(batch_bytes)
            return
        with ThreadPoolExecutor(BATCHES_AT_ONCE, "jet-chunks") as threads:
            tasks = [threads.submit(self._put_batches, batch_bytes) for _ in range(BATCHES_AT_ONCE)]
            for task in tasks:
                task.result()

    def _put_batches(self, batch_bytes: int) -> None:
        shelf = Shelf(self.schema, batch_bytes)
        while not self._is_over:
            with closing(self._batch(shelf)) as batch:
                try:
                    self.store.put_all(batch)
                except BaseException:
                    self._is_over = True  # nobody needs the rest
                    raise

    def _batch(self, shelf: Shelf) -> Generator[tuple[MapKey, Payload]]:
        """As many chunks as the shelf has room for; one at least."""
        with self._making:  # until the store has taken all of them, before it writes any
            shelf.clear()
            is_empty = True
            while not self._is_over:
                key, rows = self._ahead or next(self.rows, (None, None))
                self._ahead = None
                if key is None or rows is None:
                    self._is_over = True
                    yield from self.end()
                    return
                if shelf.has_room(rows):
                    chunk = shelf.put(rows)
                    self.made(key, rows, chunk.payload)
                    yield key, chunk
                elif is_empty:
                    large = memoryview(rows.serialize()).cast("B")  # OpenSSL takes unsigned only
                    self.made(key, rows, large)
                    yield key, large
                    return
                else:
                    self._ahead = (key, rows)
                    return
                is_empty = False
