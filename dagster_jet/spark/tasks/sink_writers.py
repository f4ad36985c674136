"""Sinks that one task writes in one epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dagster_jet.contract import Refused, SinkWriter, TransactionId
from dagster_jet.errors import BadRowError
from dagster_jet.operators.rows.casting import writable
from dagster_jet.operators.user.dead_letters import dead_letter_table
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.stage_input import OwnSink
from dagster_jet.system.own_task import at_stage

_log = logging.getLogger(__name__)


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
    ended: bool = False
    """The writer has prepared its rows or removed them, and is closed."""

    def write(self, batch: pa.RecordBatch) -> None:
        began = time.monotonic()
        rows = writable(self.own.rows(batch))
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
            self.ended = True
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
        """Removes rows that are not prepared. A failure is logged: it hides no reason to abort."""
        if self.ended:
            return
        self.ended = True
        try:
            with closing(self.writer):
                self.writer.abort()
        except Exception as error:  # noqa: BLE001 - anybody's writer
            _log.warning("%s: rows of a failed task are left: %r", self.own.name, error)


class SinkWriters:
    """Writers that all get the rows of one stage.

    The end of the block closes them all. Rows that are not prepared by then are removed. A crash
    leaves what the writers leave.
    """

    def __init__(
        self, barrier: Barrier, sinks: Iterable[OwnSink], shard: int, attempt: str
    ) -> None:
        self._shard, self._attempt = shard, attempt
        self._opened: list[_Open] = []
        self._sinks: list[_Open] = []
        try:
            for own in sinks:
                with at_stage(own.name):
                    self._sinks.append(self._open(own, barrier))
        except BaseException:
            self._abort()
            raise

    def _open(self, own: OwnSink, barrier: Barrier) -> _Open:
        letters = None if own.dead_letters is None else self._open(own.dead_letters, barrier)
        transaction = barrier.transaction(own.name, self._shard, self._attempt)
        sink = _Open(own, transaction, own.sink.open_writer(transaction), letters)
        self._opened.append(sink)
        return sink

    def __enter__(self) -> SinkWriters:
        return self

    def __exit__(self, *error: object) -> None:
        self._abort()

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

    def _abort(self) -> None:
        for sink in self._opened:
            sink.abort()
