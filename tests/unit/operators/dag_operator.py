"""Runs a built-in `Operator` as a processor of a DAG; `spark_processor.py` does the reverse.

Items are Arrow tables or record batches in `Operator.input_schemas`; results are emitted as tables.
Each call of `process` is one step, and so is each watermark. The end of the input counts as the
final watermark, so that everything that waits for event time is emitted. Results that may be older
than the watermark that emits them (joined rows, evicted states) delay the forwarded watermark by
that much: downstream of an operator they are no later than they were upstream.

Dead letters of the operator go out on a separate edge, as tables in `DEAD_LETTER_SCHEMA`.

Inbound edges are `partitioned_by(split_by_partition)`: rows come with their partition.

Saved: per partition its state rows, as one Arrow record batch; under a broadcast key the watermark
and the number of steps. In exactly-once all instances must have saved the same watermark, because
it was aligned with the barrier. In at-least-once the lowest counts, and results that an instance
had closed beyond it may be emitted again.

Source: Hazelcast Jet `SlidingWindowP`, `TransformStatefulP`: what they save, and its restore rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from dagster_jet.dag import (
    BroadcastKey,
    Emitter,
    Guarantee,
    Inbox,
    Outbox,
    PartitionKey,
    Processor,
    ProcessorContext,
    Watermark,
    broadcast_key,
    snapshot_emitter,
)
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import PipelineError, SnapshotInvalidError
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    PARTITION_COLUMN,
    MemoryState,
    Operator,
    StepInput,
)

_Item = tuple[object, "tuple[int, ...] | None"]
"""An item and the edges it goes out on; None: all edges."""

_STATE = "state"
_PROGRESS = broadcast_key("progress")


class DagOperator(Processor):
    """Processor that runs one instance of an operator, with its state, watermark and pending
    output."""

    def __init__(
        self, operator: Operator, *, output_delay_ms: int = 0, dead_letters_to: int | None = None
    ) -> None:
        """
        Args:
            output_delay_ms: how far behind the watermark a result's event time may be.
            dead_letters_to: the outbound edge for the operator's dead letters; results go out on
                all others. Required if there can be dead letters.
        """
        self.operator = operator
        self.output_delay_ms = output_delay_ms
        self.dead_letters_to = dead_letters_to
        self.rows_in = 0
        self.late_rows = 0
        self.dead_letter_rows = 0
        self._state = MemoryState(operator)
        self._watermark_ms: int | None = None
        self._version = 0
        self._restored_watermarks: list[int | None] = []

    @property
    def is_cooperative(self) -> bool:
        """False: a step takes as long as its batch is large."""
        return False

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        edges = range(outbox.edge_count)
        self._result_edges = tuple(edge for edge in edges if edge != self.dead_letters_to)
        # One emitter per callback, so that pending items of different callbacks are not mixed up.
        self._of_rows: Emitter[_Item] = Emitter(self._offer)
        self._of_watermark: Emitter[_Item] = Emitter(self._offer)
        self._of_end: Emitter[_Item] = Emitter(self._offer)
        self._of_state = snapshot_emitter(outbox.offer_to_snapshot)

    # --- processing -----------------------------------------------------------------------------

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        return self._of_rows.emit(
            lambda: self._step({ordinal: inbox.drain()}, until_ms=self._watermark_ms)
        )

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self._of_watermark.emit(
            lambda: [
                *self._step({}, until_ms=watermark.timestamp_ms),
                (Watermark(watermark.timestamp_ms - self.output_delay_ms), None),
            ]
        )

    def complete(self) -> bool:
        return self._of_end.emit(lambda: self._step({}, until_ms=FINAL_WATERMARK_MS))

    def _step(
        self, arrived: dict[int, Sequence[pa.Table | pa.RecordBatch]], until_ms: int | None
    ) -> list[_Item]:
        """Takes rows in, moves the watermark up to `until_ms`, and returns results, if any.

        All results of a step are one item. At the end a snapshot can be taken between items, and
        contains either nothing of the step or all of it. Dead letters are another item; the last
        step has none, because it takes no rows in.
        """
        before = self._watermark_ms
        if before is not None and until_ms is not None:
            until_ms = max(before, until_ms)  # an at-least-once restart may begin below
        self._version += 1
        tables = tuple(
            _table(arrived.get(ordinal, ()), schema)
            for ordinal, schema in enumerate(self.operator.input_schemas)
        )
        step = self.operator.step(StepInput(tables, before, until_ms, self._version), self._state)
        self._state.append(step.delta, until_ms)
        self._watermark_ms = until_ms
        self.rows_in += step.rows_in
        self.late_rows += step.late
        items: list[_Item] = []
        if step.results.num_rows:
            items.append((step.results, self._result_edges))
        if step.rejected is not None:
            if self.dead_letters_to is None:
                raise PipelineError(
                    "the operator has dead letters, but no edge takes them.",
                    job=self.context.job,
                    stage=self.context.vertex,
                    cure="Name one with DagOperator(dead_letters_to=...).",
                )
            self.dead_letter_rows += step.rejected.num_rows
            if step.rejected.num_rows:
                items.append((step.rejected, (self.dead_letters_to,)))
        return items

    def _offer(self, item: _Item) -> bool:
        what, edges = item
        if edges is None:
            return self.outbox.offer(what)
        return not edges or self.outbox.offer(what, *edges)

    # --- snapshots ------------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        return self._of_state.emit(self._entries)

    def _entries(self) -> Iterator[tuple[object, object]]:
        state = self._state.scan()
        partitions = state.column(PARTITION_COLUMN).to_numpy()
        for partition in np.unique(partitions).tolist():
            rows = state.filter(pa.array(partitions == partition)).combine_chunks()
            yield PartitionKey(partition, _STATE), rows.to_batches()[0].serialize().to_pybytes()
        yield _PROGRESS, (self._watermark_ms, self._version)

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        schema = self.operator.state_schema
        for key, value in inbox.drain():
            if isinstance(key, BroadcastKey):
                watermark_ms, version = value
                self._restored_watermarks.append(watermark_ms)
                self._version = max(self._version, version)
            else:
                rows = pa.ipc.read_record_batch(pa.py_buffer(value), schema)
                self._state.append(pa.Table.from_batches([rows], schema), None)
        return True

    def finish_snapshot_restore(self) -> bool:
        """
        Raises:
            SnapshotInvalidError: the guarantee is exactly-once, and the saved watermarks differ.
        """
        seen = set(self._restored_watermarks)
        if len(seen) > 1 and self.context.guarantee is Guarantee.EXACTLY_ONCE:
            raise SnapshotInvalidError(
                f"the instances were saved with different watermarks: {self._restored_watermarks}.",
                stage=self.context.vertex,
                cure="The snapshot was taken with another guarantee: restore it as at-least-once.",
            )
        known = [watermark for watermark in seen if watermark is not None]
        self._watermark_ms = min(known) if known and len(known) == len(seen) else None
        return True


def split_by_partition(
    item: object, partition_count: int
) -> Iterator[tuple[int, pa.Table | pa.RecordBatch]]:
    """Splits a table's rows by `PARTITION_COLUMN`, in their order, for `Edge.partitioned_by`."""
    assert isinstance(item, pa.Table | pa.RecordBatch)
    partitions = item.column(PARTITION_COLUMN).to_numpy()
    for partition in np.unique(partitions).tolist():
        yield partition, item.filter(pa.array(partitions == partition))


def _table(items: Sequence[pa.Table | pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    tables = [
        pa.Table.from_batches([item]) if isinstance(item, pa.RecordBatch) else item
        for item in items
    ]
    if not tables:
        return schema.empty_table()
    table, place = pa.concat_tables(tables), schema.get_field_index(ARRIVAL_COLUMN)
    if place < 0:
        return table
    numbers = pa.array(np.arange(table.num_rows))
    return table.set_column(place, schema.field(place), numbers)
