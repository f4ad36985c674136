"""Sinks in one epoch: one writer each per Spark partition, whose artifacts are in its ack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from dagster_jet.spark.tasks.barrier import Barrier, ack_batch, new_attempt
from dagster_jet.spark.tasks.epoch_parameters import EpochParameters
from dagster_jet.spark.tasks.sink_writers import SinkWriters
from dagster_jet.spark.tasks.stage_input import OwnSink


@dataclass(frozen=True)
class SinkTask:
    """Writes the rows of one sink in one epoch, or the same rows to several that render them from
    Arrow."""

    barrier: Barrier
    sinks: tuple[OwnSink, ...]

    def in_epoch(self, parameters: EpochParameters) -> SinkTask:
        return replace(self, barrier=parameters.barrier)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        shard = context.partitionId() if context is not None else 0
        held = self.sinks[0].sink.held()
        if held is not None:
            # Spark numbers the partitions of all of an epoch's frames. Those of one frame are
            # consecutive, so each of its writers gets a distinct number below `Held.writers`.
            shard %= held.writers
        with SinkWriters(self.barrier, self.sinks, shard, new_attempt()) as writers:
            for batch in batches:
                writers.write(batch)
            for ack in writers.prepare():
                yield ack_batch(ack)
