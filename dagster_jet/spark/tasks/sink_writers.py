"""The sinks that one task writes in one epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from dagster_jet.connectors.contract import Sink
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.tasks.barrier import Barrier


class SinkWriters:
    """Open writers that are all given the same rows. A crash leaves what theirs leaves."""

    def __init__(
        self, barrier: Barrier, sinks: Iterable[tuple[str, Sink]], shard: int, attempt: str
    ) -> None:
        """`sinks`: by name."""
        self._shard, self._attempt, self._rows = shard, attempt, 0
        self._writers = [
            (name, sink.open_writer(barrier.transaction(name, shard, attempt)))
            for name, sink in sinks
        ]

    def write(self, batch: pa.RecordBatch) -> None:
        for _, writer in self._writers:
            writer.write(batch)
        self._rows += batch.num_rows

    def prepare(self) -> Iterator[Ack]:
        """One ack per sink, once it has what it was given."""
        for name, writer in self._writers:
            artifacts = writer.prepare()
            writer.close()
            yield Ack(
                name,
                self._shard,
                self._attempt,
                rows_in=self._rows,
                rows_out=self._rows,
                artifacts=artifacts,
            )

    def abort(self) -> None:
        """Best effort: removes what was written."""
        for _, writer in self._writers:
            writer.abort()
            writer.close()
