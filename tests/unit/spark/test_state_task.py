"""Saved state in tasks, partition by partition: the rows that the driver would read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.snapshot.storage.chains import read_chain
from dagster_jet.snapshot.storage.chunks import (
    PARTITION_COLUMN,
    ROTATION,
    ChunkSetName,
    write_chunk_set,
)
from dagster_jet.spark.tasks.state_task import StateTask, schema_of_all
from dagster_jet.store import Store

MAP, STAGE = "jobs/j/state", "stage"


def rows(partitions: list[int], *, x_is_nullable: bool | None) -> pa.Table:
    """With a column x, unless `x_is_nullable` is None."""
    fields = [pa.field(PARTITION_COLUMN, pa.int32()), pa.field("k", pa.string())]
    columns: list[list[object]] = [[*partitions], [f"key-{p}" for p in partitions]]
    if x_is_nullable is not None:
        fields.append(pa.field("x", pa.int64(), nullable=x_is_nullable))
        columns.append([10 * p for p in partitions])
    return pa.table(columns, schema=pa.schema(fields))


@pytest.mark.parametrize("x_is_nullable", [True, False])
@pytest.mark.parametrize("x_is_new", [True, False])
def test_a_column_that_some_chunks_lack_is_null_there(
    store: Store, *, x_is_new: bool, x_is_nullable: bool
) -> None:
    """Failed before: `read_state_frame` after the pipeline had got, or left out, a column."""
    older, newer = (None, x_is_nullable) if x_is_new else (x_is_nullable, None)
    count, chunks = store.partition_count, store.map(MAP)

    def write(snapshot: int, full: list[int], table: pa.Table, *, base: bool) -> ChunkSet:
        name = ChunkSetName(STAGE, snapshot, 1, 0, "a")
        sequence = snapshot * ROTATION
        return write_chunk_set(
            chunks, name, table, full, sequence=sequence, is_base=base, partition_count=count
        )

    chain = (
        write(0, [0, 1, 2], rows([0, 1, 2], x_is_nullable=older), base=True),
        write(1, [0], rows([0, 1], x_is_nullable=newer), base=False),
    )
    expected = read_chain(chunks, chain, vertex=STAGE, partition_count=count)
    assert expected is not None
    schema = schema_of_all(
        [rows([], x_is_nullable=older).schema, rows([], x_is_nullable=newer).schema]
    )
    task = StateTask(store.handle(), MAP, STAGE, (chain,), count, schema)
    each = [list(task([pa.record_batch({"id": [partition]})])) for partition in range(3)]
    assert [sum(batch.num_rows for batch in batches) for batches in each] == [1, 2, 1]
    found = pa.Table.from_batches([batch for batches in each for batch in batches])
    order = [(name, "ascending") for name in (PARTITION_COLUMN, "x")]
    assert found.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
