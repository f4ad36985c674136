"""Reads a stage's saved state in tasks, each its own partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet.operators.rows.casting import cast_rows
from dagster_jet.operators.saved_rows import living_rows
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.storage.chains import ChainReader
from dagster_jet.state.merging import ROWS_AT_ONCE
from dagster_jet.store import StoreHandle


@dataclass(frozen=True)
class StateTask:
    """Receives numbers of partitions, and returns their rows.

    All rows of a key are in one partition, so a task can merge them by itself.
    """

    store: StoreHandle
    map_name: str
    vertex: str
    chains: tuple[tuple[ChunkSet, ...], ...]
    partition_count: int
    schema: pa.Schema
    plan: dict[str, Any] | None = field(default=None)
    """The stage's plan; None: returns the rows as they were saved."""
    expired_until_ms: int | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = frozenset(n for batch in batches for n in batch.column(0).to_pylist())
        chunks = self.store.map(self.map_name)
        for chain in self.chains:
            reader = ChainReader.open(
                chunks,
                chain,
                vertex=self.vertex,
                partition_count=self.partition_count,
                wanted=wanted,
            )
            for table in reader.tables(ROWS_AT_ONCE):
                rows = table
                if self.plan is not None:
                    rows = living_rows(rows, self.plan, self.expired_until_ms)
                yield from cast_rows(rows.select(self.schema.names), self.schema).to_batches()
