"""Sinks that one task writes in one epoch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_jet.contract import Refused, SinkWriter, TransactionId
from dagster_jet.errors import BadRowError
from dagster_jet.operators.user.dead_letters import dead_letter_table
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.stage_input import OwnSink
from dagster_jet.system.own_task import at_stage


@dataclass
class _Open:
    """A sink with its open writer and its counts."""

    own: OwnSink
    transaction: TransactionId
    writer: SinkWriter
    dead_letters: _Open | None = None
    rows: int = 0
    rejected: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, own: OwnSink, barrier: Barrier, shard: int, attempt: str) -> _Open:
        transaction = barrier.transaction(own.name, shard, attempt)
        letters = own.dead_letters
        opened = None if letters is None else cls.of(letters, barrier, shard, attempt)
        return cls(own, transaction, own.sink.open_writer(transaction), opened)

    def write(self, batch: pa.RecordBatch) -> None:
        began = time.monotonic()
        rows = self.own.rows(batch)
        self.rows += rows.num_rows
        refused = self.own.sink.refused(rows)
        if refused:
            self._reject(refused)
            rows = rows.filter(pa.array(~np.isin(np.arange(rows.num_rows), list(refused))))
        if rows.num_rows:
            self.writer.write(rows)
        self.seconds += time.monotonic() - began

    def _reject(self, refused: Mapping[int, Refused]) -> None:
        """Handles refused rows before the decision: decided rows must be written."""
        if self.dead_letters is None:
            first = refused[min(refused)]
            elsewhere = (
                ", or send them to a dead-letter sink: write_to(...).dead_letter_to(sink, "
                "name=...)."
            )
            raise BadRowError(
                f"the sink refuses a row and would refuse it again: {first.reason}: "
                f"{first.raw:.300}.",
                job=self.transaction.job,
                stage=self.own.name,
                position=first.position,
                cure="Change the sink's table or topic so that it accepts such rows, or change "
                "the rows before the sink" + (elsewhere if self.own.sink.can_leave_out() else "."),
            )
        self.rejected += len(refused)
        letters = dead_letter_table(
            self.own.name, [(one.position, one.reason, one.raw) for one in refused.values()]
        )
        for batch in letters.to_batches():
            self.dead_letters.write(batch)

    def prepare(self, shard: int, attempt: str) -> Iterator[Ack]:
        began = time.monotonic()
        with at_stage(self.own.name):
            artifacts = self.writer.prepare()
            self.writer.close()
        yield Ack(
            self.own.name,
            shard,
            attempt,
            rows_in=self.rows,
            rows_out=self.rows - self.rejected,
            rejected=self.rejected,
            artifacts=artifacts,
            work_ms=round((self.seconds + time.monotonic() - began) * 1000, 2),
        )
        if self.dead_letters is not None:
            yield from self.dead_letters.prepare(shard, attempt)

    def abort(self) -> None:
        self.writer.abort()
        self.writer.close()
        if self.dead_letters is not None:
            self.dead_letters.abort()


class SinkWriters:
    """Open writers that all get the rows of one stage. A crash leaves what the writers leave."""

    def __init__(
        self, barrier: Barrier, sinks: Iterable[OwnSink], shard: int, attempt: str
    ) -> None:
        self._shard, self._attempt = shard, attempt
        self._sinks = []
        for own in sinks:
            with at_stage(own.name):
                self._sinks.append(_Open.of(own, barrier, shard, attempt))

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes a batch; rows that a sink's place never takes go to its dead-letter sink.

        Raises:
            BadRowError: the sink has no dead-letter sink.
        """
        for sink in self._sinks:
            with at_stage(sink.own.name):
                sink.write(batch)

    def prepare(self) -> Iterator[Ack]:
        """Yields one ack per sink, once its rows are staged."""
        for sink in self._sinks:
            yield from sink.prepare(self._shard, self._attempt)

    def abort(self) -> None:
        """Removes the written rows, best effort."""
        for sink in self._sinks:
            sink.abort()
