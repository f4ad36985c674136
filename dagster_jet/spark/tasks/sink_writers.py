"""The sinks that one task writes in one epoch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa

from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.stage_input import OwnSink


class SinkWriters:
    """Open writers that are all given the rows of one stage. A crash leaves what theirs leaves."""

    def __init__(
        self, barrier: Barrier, sinks: Iterable[OwnSink], shard: int, attempt: str
    ) -> None:
        self._shard, self._attempt, self._rows = shard, attempt, 0
        self._writers = [
            (own, own.sink.open_writer(barrier.transaction(own.name, shard, attempt)))
            for own in sinks
        ]
        self._seconds = [0.0] * len(self._writers)

    def write(self, batch: pa.RecordBatch) -> None:
        for n, (own, writer) in enumerate(self._writers):
            began = time.monotonic()
            writer.write(own.rows(batch))
            self._seconds[n] += time.monotonic() - began
        self._rows += batch.num_rows

    def prepare(self) -> Iterator[Ack]:
        """One ack per sink, once it has what it was given."""
        for (own, writer), seconds in zip(self._writers, self._seconds, strict=True):
            began = time.monotonic()
            artifacts = writer.prepare()
            writer.close()
            yield Ack(
                own.name,
                self._shard,
                self._attempt,
                rows_in=self._rows,
                rows_out=self._rows,
                artifacts=artifacts,
                work_ms=round((seconds + time.monotonic() - began) * 1000, 2),
            )

    def abort(self) -> None:
        """Best effort: removes what was written."""
        for _, writer in self._writers:
            writer.abort()
            writer.close()
