"""Reads a stage's saved state in tasks, each its own partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet.operators.rows.casting import cast_rows
from dagster_jet.operators.saved_rows import living_rows
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.storage.chains import ChainReader
from dagster_jet.state.merging import ROWS_AT_ONCE
from dagster_jet.store import StoreHandle


def schema_of_all(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Schema of the rows of all chunks. A column that some of them lack, because the pipeline has
    changed, may be null."""
    everywhere = set.intersection(*(set(schema.names) for schema in schemas))
    together = pa.unify_schemas(schemas, promote_options="default").remove_metadata()
    return pa.schema([f if f.name in everywhere else f.with_nullable(True) for f in together])


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
    """See `schema_of_all`."""
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
                # As `read_state`: rows of older pipelines have nulls in columns that they lack.
                rows = pa.concat_tables(
                    [table, self.schema.empty_table()], promote_options="default"
                )
                if self.plan is not None:
                    rows = living_rows(rows, self.plan, self.expired_until_ms)
                yield from cast_rows(rows.select(self.schema.names), self.schema).to_batches()
