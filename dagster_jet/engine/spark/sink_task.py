"""A sink in one epoch: one writer per Spark partition, its artifacts in the ack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from dagster_jet.engine.connector import Sink, SinkWriter
from dagster_jet.engine.spark.barrier import Barrier, ack_batch, new_attempt
from dagster_jet.snapshot.manifest import Ack


@dataclass(frozen=True)
class SinkTask:
    """Writes the rows of one sink in one epoch."""

    barrier: Barrier
    sink_name: str
    sink: Sink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        shard = context.partitionId() if context is not None else 0
        attempt = new_attempt()
        writer = self.sink.open_writer(self.barrier.transaction(self.sink_name, shard, attempt))
        rows = _write_all(writer, batches)
        artifacts = writer.prepare()
        yield ack_batch(
            Ack(self.sink_name, shard, attempt, rows_in=rows, rows_out=rows, artifacts=artifacts)
        )


def _write_all(writer: SinkWriter, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    try:
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
    except BaseException:
        writer.abort()
        raise
    return rows
