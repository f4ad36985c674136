"""Runs a user's `Processor` as the operator of a Spark stage: one instance per shard and epoch.

    restore the shard's entries -> the epoch's rows -> its watermark -> save -> delta

The rows of an epoch come in order of arrival; `InEventOrder` around this operator makes it the
order of event time. The tasklet is that of the local runtime. Every epoch ends in a barrier,
because the next epoch may run in another Python process: an instance keeps only what it saves. The
cost of an epoch therefore grows with a shard's saved state; built-in
operators and `map_stateful` do not have that cost.

Saved: an entry is a state row, versioned by key; only changed ones are written. An entry under a
`broadcast_key` is in the partition with its shard's number; at another parallelism every shard
reads those of all former shards.

A processor that commits in two phases (it overrides `snapshot_commit_prepare` or
`snapshot_commit_finish`) is prepared at the end of every epoch, which then always ends in a
snapshot. A new instance receives the decision, as after a crash:

    restore -> rows -> save -> prepare        | the snapshot is decided
    restore, which commits -> close           | phase 2, a Spark job of its own
    restore -> the next epoch's rows -> ...   | finds nothing left to commit

`snapshot_commit_finish` is never called: it is for the instance that has prepared, which is gone.
At the end of the inputs the barrier comes before `complete`, so the last rows are prepared, too.

At-least-once: rows between the snapshot and the crash are processed again with the saved state.
Output committed in two phases is exactly-once even then.
Source: Hazelcast Jet `ProcessorTasklet`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import xxhash

from dagster_jet.core.job_context import own_metrics, own_parameters
from dagster_jet.core.partition import partition_of_key
from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag import (
    DONE,
    BoundedQueue,
    BroadcastKey,
    Callback,
    CallOutcome,
    ContractError,
    InboundEdge,
    Outbox,
    Partitioning,
    Phase1,
    Processor,
    ProcessorCalls,
    ProcessorContext,
    ProcessorInput,
    ProcessorTasklet,
    SnapshotBarrier,
    SnapshotContext,
    SnapshotEntry,
    TaskletState,
    Watermark,
    new_processor,
)
from dagster_jet.dag.items import is_in_band
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import PipelineError, ProcessorError, StoreMismatchError
from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    PARTITION_COLUMN,
    VERSION_COLUMN,
    StateReader,
    Step,
    StepInput,
    newest_version,
)
from dagster_jet.operators.row_operator import RowOperator
from dagster_jet.operators.rows.sorting import order_by
from dagster_jet.operators.user import saved_value
from dagster_jet.operators.user.batch_calls import Returned
from dagster_jet.operators.user.python_rows import OutputMismatchError, OutputRows, row_dicts

KEY_COLUMN = "__key"
"""binary: key of an entry, saved in `state_format`."""
ORIGIN_COLUMN = "__origin"
"""int32: for an entry under a broadcast key, the index of the instance that saved it."""
VALUE_COLUMN = "__value"
"""binary: value, saved in `state_format`; null once the key is no longer saved."""

_CURE_ROWS = "Offer rows as dicts with the columns of output_schema, in its types."
_CURE_BATCHES = "Offer Arrow record batches of output_schema."

IDLE_CALLS_MAX = 1_000_000
"""Consecutive calls without progress after which a processor counts as stuck."""

_Saved = dict[tuple[int, bytes, int | None], bytes]
"""(partition, key, origin) -> value."""


@dataclass(frozen=True)
class SparkProcessor(RowOperator):
    """`Operator` that runs a user's `Processor` in Spark tasks. One input: the stream's rows."""

    stage: str
    supplier: Callable[[], Processor]
    row_schema: pa.Schema
    output_schema: pa.Schema
    row_keys: tuple[str, ...]
    """Columns that rows are partitioned by. If empty, one instance has all rows, in partition 0."""
    in_batches: bool
    """Items are Arrow record batches, in and out, instead of dicts."""
    partition_count: int
    job: str = "job"
    commits_in_two_phases: bool = False
    has_timers: bool = False
    """It is called even if nothing arrives, and may act then."""
    state_format: StateFormat = StateFormat.PLAIN
    keys: ClassVar[tuple[str, ...]] = ()
    ttl_ms: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.row_keys:
            kind = self.row_schema.field(key).type
            if not _has_shared_hash(kind):
                raise PipelineError(
                    f"{key!r} is {kind}, which cannot be a key: keys are assigned to processors "
                    "by a hash, and Python and Spark have no common hash for that type.",
                    cure=f"Use it as a string: select cast({key} as string) first.",
                )

    @property
    def is_keyed(self) -> bool:
        return bool(self.row_keys)

    @property
    def state_schema(self) -> pa.Schema:
        return pa.schema(
            [
                *ADDRESS,
                pa.field(VERSION_COLUMN, pa.int64()),
                pa.field(KEY_COLUMN, pa.binary()),
                pa.field(ORIGIN_COLUMN, pa.int32()),
                pa.field(VALUE_COLUMN, pa.binary()),
            ]
        )

    @property
    def result_schema(self) -> pa.Schema:
        return self.output_schema

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        return newest_version(tables, (PARTITION_COLUMN, KEY_COLUMN, ORIGIN_COLUMN))

    def without_tombstones(self, merged: pa.Table) -> pa.Table:
        """Drops entries that are no longer saved."""
        return merged.filter(merged.column(VALUE_COLUMN).is_valid())

    @property
    def shares_rows(self) -> bool:
        return self.is_keyed  # without keys the only instance has all rows

    def shared_rows(self, state: pa.Table, shard: int) -> pa.Table:
        """Entries under broadcast keys."""
        rows = state.filter(state.column(ORIGIN_COLUMN).is_valid())
        place = rows.schema.get_field_index(PARTITION_COLUMN)
        here = pa.array(np.full(rows.num_rows, shard, np.int32))
        return rows.set_column(place, rows.schema.field(place), here)

    def step(self, given: StepInput, state: StateReader) -> Step:
        (arrived,) = given.arrived
        if not self.is_keyed and given.shard != 0:
            return Step(self.result_schema.empty_table(), self.state_schema.empty_table(), 0)
        before = self._saved(state.scan())
        run = _Run(self, given, before)
        in_order = order_by(arrived.column(ARRIVAL_COLUMN).to_numpy())
        results = run.results(arrived.select(self.row_schema.names).take(in_order))
        delta = self._delta(before, run.saved, given.version)
        # A processor may prepare without saving a transaction id, because it can compute the id.
        came = arrived.num_rows or delta.num_rows or given.before_ms != given.after_ms
        prepared = self.commits_in_two_phases and (bool(came) or self.has_timers)
        return Step(results, delta, arrived.num_rows, prepared=prepared)

    def commit(self, given: StepInput, state: StateReader) -> None:
        """Phase 2 of one shard: only restores an instance from the decided state.

        Its output is discarded, as if it died right after; the next instance emits it again.

        Raises:
            ProcessorError: the processor raised, or broke its contract.
        """
        if self.is_keyed or given.shard == 0:
            _Run(self, given, self._saved(state.scan())).restore()

    def _saved(self, rows: pa.Table) -> _Saved:
        columns = (PARTITION_COLUMN, KEY_COLUMN, ORIGIN_COLUMN, VALUE_COLUMN)
        values = zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
        return {
            (partition, key, origin): value
            for partition, key, origin, value in values
            if value is not None
        }

    def _delta(self, before: _Saved, after: _Saved, version: int) -> pa.Table:
        changed: dict[tuple[int, bytes, int | None], bytes | None] = {
            place: value for place, value in after.items() if before.get(place) != value
        }
        changed.update(dict.fromkeys(before.keys() - after.keys()))
        places = list(changed)
        columns = [
            [partition for partition, _, _ in places],
            [_signed_hash(key) for _, key, _ in places],
            [0] * len(places),
            [version] * len(places),
            [key for _, key, _ in places],
            [origin for _, _, origin in places],
            list(changed.values()),
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self.state_schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.state_schema)


class _Run:
    """One instance, from its restore to its barrier (or to its end, if the input is over)."""

    def __init__(self, operator: SparkProcessor, given: StepInput, before: _Saved) -> None:
        self._operator, self._given, self._before = operator, given, before
        self._partitioning = Partitioning(partition_of_key, operator.partition_count)
        self._rows = OutputRows(operator.output_schema)
        self._batches = [operator.output_schema.empty_table()]
        self.saved: _Saved = {}

    def results(self, arrived: pa.Table) -> pa.Table:
        """
        Raises:
            ProcessorError: the processor raised, or broke its contract.
        """
        operator = self._operator
        is_last = self._given.after_ms == FINAL_WATERMARK_MS
        tasklet = self._tasklet(self._queue(arrived), saves_at_end=operator.commits_in_two_phases)
        with closing(tasklet):
            _drive(tasklet, Callback.PROCESS, lambda: tasklet.has_saved(0))
            if is_last and operator.commits_in_two_phases:
                # `complete` may also wait for a phase 2, which this instance does not get.
                over = (TaskletState.AWAIT_PHASE_2, TaskletState.END)
                _called_until(tasklet, lambda: tasklet.state in over)
        if operator.in_batches:
            return pa.concat_tables(self._batches)
        try:
            return self._rows.to_table()
        except OutputMismatchError as error:
            raise ProcessorError(
                f"emitted {error}.",
                vertex=operator.stage,
                index=self._given.shard,
                callback="outbox.offer()",
                cure=_CURE_ROWS,
            ) from None

    def restore(self) -> None:
        tasklet = self._tasklet(BoundedQueue(1), saves_at_end=False)
        with closing(tasklet):
            _drive(tasklet, Callback.RESTORE, lambda: tasklet.has_restored)

    def _tasklet(self, queue: BoundedQueue, *, saves_at_end: bool) -> ProcessorTasklet:
        """
        Args:
            saves_at_end: takes a snapshot at the end of the input, before `complete`.
        """
        operator, given = self._operator, self._given
        context = ProcessorContext(
            operator.stage,
            given.shard,
            given.shard_count,
            given.guarantee,
            operator.job,
            given.fencing_token,
            own_parameters(),
            own_metrics(),
        )
        snapshots = SnapshotContext()
        if saves_at_end:
            snapshots.phase1 = Phase1(snapshots.next_id)
        return ProcessorTasklet(
            ProcessorCalls(
                new_processor(operator.supplier, operator.stage, given.shard, job=operator.job),
                Outbox([_Stream(self._emit)], _Stream(self._save)),
                context,
            ),
            ProcessorInput([InboundEdge(0, [queue], exactly_once=True)], exactly_once=True),
            snapshots,
            # An empty state was decided, too: it names no transactions.
            restored=self._entries() if self._before or operator.commits_in_two_phases else None,
        )

    def _queue(self, arrived: pa.Table) -> BoundedQueue:
        items: list[Any] = list(
            arrived.to_batches() if self._operator.in_batches else row_dicts(arrived)
        )
        after_ms = self._given.after_ms
        if after_ms == FINAL_WATERMARK_MS:
            items.append(DONE)
        else:
            if after_ms is not None and after_ms != self._given.before_ms:
                items.append(Watermark(after_ms))
            items.append(SnapshotBarrier(0))
        queue = BoundedQueue(len(items))
        for item in items:
            queue.offer(item)
        return queue

    def _entries(self) -> Iterator[SnapshotEntry]:
        """Yields the saved entries; a broadcast entry once for each instance that saved it."""
        seen: set[tuple[bytes, int]] = set()
        for (_, key, origin), value in self._before.items():
            if origin is not None:
                if (key, origin) in seen:
                    continue
                seen.add((key, origin))
            yield SnapshotEntry(self._loaded(key), self._loaded(value))

    def _loaded(self, saved: bytes) -> Any:
        try:
            return saved_value.load(saved, self._operator.state_format)
        except StoreMismatchError:
            raise
        except Exception as error:
            raise ContractError(
                f"saved an entry that cannot be read back: {type(error).__name__}: {error}.",
                "Save plain values; a class of yours must still be found under its module and "
                "name.",
            ) from error

    def _emit(self, item: object) -> None:
        if is_in_band(item):
            return
        if not self._operator.in_batches:
            try:
                self._rows.add(item)
            except OutputMismatchError as error:
                raise ContractError(f"emitted {error}.", _CURE_ROWS) from error
        elif isinstance(item, pa.RecordBatch):
            operator = self._operator
            checked = _Emitted(operator.supplier, operator.stage)
            schema = operator.output_schema
            self._batches.append(checked.table(item, schema, "a batch", "output_schema"))
        else:
            raise ContractError(f"emitted a {type(item).__name__}.", _CURE_BATCHES)

    def _save(self, item: object) -> None:
        if not isinstance(item, SnapshotEntry):
            return
        try:
            key, value = (saved_value.save(part, self._operator.state_format) for part in item)
        except Exception as error:  # objects fail to pickle in many ways
            raise ContractError(
                f"saved an entry with key {item.key!r} that cannot be serialised: {error}.",
                self._operator.state_format.cure,
            ) from error
        if isinstance(item.key, BroadcastKey):
            shard = self._given.shard
            if shard < self._operator.partition_count:  # else no partitions, no rows
                self.saved[shard, key, shard] = value
            return
        self.saved[self._partition_of(item.key), key, None] = value

    def _partition_of(self, key: object) -> int:
        if not self._operator.is_keyed:
            return 0
        try:
            partition = self._partitioning.partition_of(key)
        except (TypeError, ValueError, OverflowError) as error:
            raise ContractError(
                f"saved an entry whose key {key!r} has no partition: {error}.",
                "Use the stage's key, PartitionKey or broadcast_key.",
            ) from error
        if partition % self._given.shard_count != self._given.shard:
            raise ContractError(
                f"saved an entry whose key {key!r} belongs to another instance.",
                "Save under the key that the stage is grouped by (a tuple, if there are several), "
                "or under a broadcast_key.",
            )
        return partition


class _Emitted(Returned):
    """Checks the batches that a processor emits."""

    def error(self, what: str, cure: str) -> ContractError:
        return ContractError(f"emitted {what}.", _CURE_BATCHES)


@dataclass(frozen=True)
class _Stream:
    """Outbound stream that accepts every item: an epoch's results are one table anyway."""

    take: Callable[[object], None]

    def offer(self, item: object) -> bool:
        self.take(item)
        return True


def _drive(tasklet: ProcessorTasklet, callback: Callback, is_there: Callable[[], bool]) -> None:
    """Calls the tasklet until `is_there`; `callback` is named in the error if it gets stuck."""
    if not _called_until(tasklet, is_there):
        raise tasklet.calls.error(
            callback,
            "makes no progress, although the outbox accepts its items.",
            "Return False only if a repeated call makes progress.",
        )


def _called_until(tasklet: ProcessorTasklet, is_there: Callable[[], bool]) -> bool:
    """Whether `is_there` became true before too many calls without progress."""
    idle_calls = 0
    while not is_there():
        idle_calls = idle_calls + 1 if tasklet.call() is CallOutcome.NONE else 0
        if idle_calls > IDLE_CALLS_MAX:
            return False
    return True


def _has_shared_hash(kind: pa.DataType) -> bool:
    """Whether `partition_of_key` of the Python values agrees with Spark's plan, which casts narrow
    numbers to the widest type."""
    known = (
        pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating,
        pa.types.is_string, pa.types.is_binary, pa.types.is_date, pa.types.is_timestamp,
    )  # fmt: skip
    return any(is_kind(kind) for is_kind in known)


def _signed_hash(key: bytes) -> int:
    unsigned: int = xxhash.xxh64_intdigest(key)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned
