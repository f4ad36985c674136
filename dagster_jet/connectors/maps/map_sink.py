"""A map as a transactional sink: rows become changes, staged in phase 1, applied in phase 2.

Each epoch has at most one change per key: Spark keeps the row with the highest `order_by` (without
it, the last row). Later epochs win. A row without value deletes its key.

Phase 1 stages the changes in the store, in chunks under the transaction's name, invisible to
readers of the map. Phase 2 passes the chunks one by one to the map's log, which records the chunk's
`Producer` in the same decision. A commit that is repeated, or late from a dead execution, finds its
chunks decided and changes neither the map nor its journal.

At-least-once: every epoch is visible immediately. After a restart the keys of the epochs since the
last snapshot are set again, and the journal has those changes twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.earlier_epochs import refuse_earlier_epochs
from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.connectors.row_order import newest_per_key
from dagster_jet.connectors.staging import (
    CHUNK_BYTES_MAX,
    SegmentWriter,
    StoreArea,
    remove_orphans,
    segments_by_epoch,
)
from dagster_jet.connectors.values.json_text import JSON_TEXT
from dagster_jet.contract import (
    CommitContext,
    Committer,
    Refused,
    Sink,
    SinkWriter,
    TransactionId,
    carry_out_here,
)
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    PipelineError,
)
from dagster_jet.maps import DELETE, PUT, JetMap
from dagster_jet.maps.changes import MapChange, decode_changes, encode_changes, size_of
from dagster_jet.maps.key_encoding import encode_key, partition_of
from dagster_jet.maps.log_state import Producer
from dagster_jet.operators.user.dead_letters import row_json
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.store import Store
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

CHUNK_CHANGES_MAX = 5_000
IN_PROCESS_BYTES_MAX = 1 << 20
"""Epochs up to this size are applied on the driver, which is faster than a Spark job."""
_KEY, _VALUE, _ORDER = "__key", "__value", "__order"
FORMATS = ("json", "bytes")


@dataclass(frozen=True)
class MapSink(Sink, Committer):
    """Writes a stream into a map of the job's own store.

    Args:
        map: the map's name; created with JSON values if it does not exist.
        key: column of the key, or several for a tuple.
        value: column of the value, or several for an object; None: all columns but the key's.
        order_by: column whose highest value selects an epoch's row for a key; among equal values
            the last row counts. None: the last row.
    """

    map: str
    key: tuple[str, ...]
    value: str | tuple[str, ...] | None = None
    order_by: str | None = None
    max_guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    bound: JetMap | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.key:
            raise ConfigurationError("key: name at least one column.")

    def describe(self) -> dict[str, str]:
        shown = {"kind": "map", "map": self.map, "key": ", ".join(self.key)}
        return {**shown, **shown_guarantee(self.max_guarantee)}

    def destination(self) -> dict[str, Any]:
        return {"map": self.map}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> MapSink:
        return cls(destination["map"], key=("",))  # staged changes contain their keys

    def with_store(self, store: Store) -> MapSink:
        return replace(self, bound=JetMap(store, self.map, None))

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        state = self._map.create() if is_new_job else self._map.log.read()
        if state is None:
            return  # created later, or no longer there
        if state.settings.format not in FORMATS:
            raise ConfigurationError(
                f"the map {self.map!r} keeps {state.settings.format!r} values.",
                job=job,
                stage=stage,
                cure=f"A sink writes maps of the formats {', '.join(FORMATS)}.",
            )
        name = _producer_name(job, stage)
        if is_new_job and not state.sinks.keys().isdisjoint((name, f"{name}{_REPEATABLE}")):
            refuse_earlier_epochs(
                f"the map {self.map!r}",
                job,
                stage,
                cure="Use another map, or another name for the job or the sink.",
            )

    def claim_place(self, job: str, stage: str) -> None:
        self._map.create()

    def takes(self, schema: pa.Schema) -> bool:
        return False  # `render` must shuffle rows by key

    def render(self, frame: DataFrame) -> DataFrame:
        """Returns the key columns and the value's bytes, one row per key."""
        from pyspark.sql import functions as F

        self._check_columns(frame.columns)
        keys = [
            _key_column(name, frame.schema[name].dataType).alias(f"{_KEY}{number}")
            for number, name in enumerate(self.key)
        ]
        order = [] if self.order_by is None else [_column(self.order_by).alias(_ORDER)]
        rows = frame.select(*keys, self._value_column(frame).alias(_VALUE), *order)
        names = [f"{_KEY}{number}" for number in range(len(keys))]
        newest = newest_per_key(rows, names, F.col(_ORDER) if order else None)
        return newest.select(*names, _VALUE)

    def refused(self, rows: pa.RecordBatch) -> dict[int, Refused]:
        """Refuses rows with a null in the key. The map accepts any other staged row."""
        *keys, values = rows.columns
        if not any(column.null_count for column in keys):
            return {}
        found = {}
        for number in range(rows.num_rows):
            key = [column[number].as_py() for column in keys]
            if None in key:
                value = values[number].as_py()
                shown = dict(zip(self.key, key, strict=True))
                shown["value"] = None if value is None else value.decode("utf-8", "replace")
                why = f"the map {self.map!r} refuses it: a column of its key is null"
                found[number] = Refused(why, row_json(shown))
        return found

    def open_writer(self, transaction: TransactionId) -> MapWriter:
        return MapWriter(self._map, transaction)

    def open_committer(self, job: str, stage: str) -> MapSink:
        return self  # nothing is kept open between commits

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """See `Committer.commit`. A repeated call skips chunks that are already decided."""
        chunks = ChunkCommit(self, context.job, context.sink)
        for epoch_id, segments in segments_by_epoch(chunks.area, artifacts):
            numbered = [(segment, name) for segment in segments for name in segment.names]
            state = self._map.create()
            todo = [
                (name, _producer(context, epoch_id, number), segment.artifact)
                for number, (segment, name) in enumerate(numbered)
                if not state.has(_producer(context, epoch_id, number))
            ]
            is_repeated = len(todo) < len(numbered)
            is_small = sum(segment.artifact.bytes for segment in segments) <= IN_PROCESS_BYTES_MAX
            # One piece: the map's log takes chunks in the order of their numbers.
            run = carry_out_here if is_small else context.in_tasks
            while todo:
                [count] = run([partial(chunks, [(name, producer) for name, producer, _ in todo])])
                if count == len(todo):
                    break
                # Before any later chunk: once that is decided, this one counts as decided.
                name, producer, artifact = todo[count]
                self._accept_loss(name, producer, artifact, context)
                self._map.apply([], producer)
                todo = todo[count + 1 :]
            if is_repeated:
                # The execution that decided the other chunks may have died before it applied them.
                self._map.log.read_applied()
            fail_point("maps.commit.applied")
            for segment in segments:
                segment.remove()

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        state = self._map.log.read()
        area = self._area(context.job, context.sink)
        return state is not None and all(
            state.has(_producer(context, epoch_id, number))
            for epoch_id, segments in segments_by_epoch(area, artifacts)
            for number in range(sum(len(segment.names) for segment in segments))
        )

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        return remove_orphans(self._area(context.job, context.sink), context.execution_id, keep)

    def _accept_loss(
        self, name: str, producer: Producer, artifact: Artifact, context: CommitContext
    ) -> None:
        if context.accept_loss:
            context.report_lost(artifact)
            return
        raise ArtifactLostError(
            f"the staged changes {name!r} are gone, and the map {self.map!r} does not have them.",
            job=context.job,
            stage=context.sink,
            position=f"epoch {producer.number[-2]}",
            cure="Bring the store's lost members back, or let the job go on without these changes "
            "with the start option accept_loss=True.",
        )

    def _area(self, job: str, stage: str) -> StoreArea:
        return StoreArea(self._map.store, job, stage)

    @property
    def _map(self) -> JetMap:
        assert self.bound is not None, "the engine puts it on the job's store first"
        return self.bound

    def _check_columns(self, columns: list[str]) -> None:
        values = (self.value,) if isinstance(self.value, str) else (self.value or ())
        wanted = [*self.key, *values, *([self.order_by] if self.order_by else [])]
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise PipelineError(
                f"there is no column {', '.join(missing)} for the map {self.map!r}; there are "
                f"{', '.join(columns)}.",
            )
        if self.value is None and set(columns) <= set(self.key):
            raise PipelineError(
                f"all columns belong to the key of the map {self.map!r}.",
                cure="Add a column for the value.",
            )

    def _value_column(self, frame: DataFrame) -> Column:
        """Returns the value as bytes; null if the row deletes its key."""
        from pyspark.sql import functions as F

        if self._map.settings.format == "bytes":
            if not isinstance(self.value, str):
                raise PipelineError(
                    f"the map {self.map!r} keeps bytes.", cure="Name one binary column as value=."
                )
            return _column(self.value).cast("binary")
        if isinstance(self.value, str):
            wrapped = F.to_json(F.struct(_column(self.value).alias("v")), JSON_TEXT)
            text = F.substr(wrapped, F.lit(6), F.length(wrapped) - 6)  # {"v":...}
            has_value = _column(self.value).isNotNull()
        else:
            names = self.value or tuple(n for n in frame.columns if n not in self.key)
            text = F.to_json(F.struct(*map(quoted_name, names)), JSON_TEXT)
            has_value = reduce(lambda a, b: a | b, [_column(name).isNotNull() for name in names])
        return F.when(has_value, text.cast("binary"))


@dataclass(frozen=True)
class ChunkCommit:
    """Applies staged chunks to a map, on the driver or in a task. A task opens the store itself, so
    that rows do not pass the driver."""

    sink: MapSink
    job: str
    stage: str

    @property
    def area(self) -> StoreArea:
        return self.sink._area(self.job, self.stage)

    def __call__(self, chunks: Sequence[tuple[str, Producer]]) -> int:
        """Applies the chunks in order, up to the first that is neither staged nor decided.

        Returns:
            The number of chunks before that one: all of them if none is lost.
        """
        handle = self.sink._map.store
        if isinstance(handle, Store):
            return self._apply(chunks)
        with Store.open(handle.config, create=False) as store:
            return replace(self, sink=self.sink.with_store(store))._apply(chunks)

    def _apply(self, chunks: Sequence[tuple[str, Producer]]) -> int:
        area, map = self.area, self.sink._map
        for number, (name, producer) in enumerate(chunks):
            fail_point("maps.commit.chunk")
            data = area.get(name)
            if data is not None:
                map.apply(list(decode_changes(data)), producer)
            elif not (state := map.log.read_applied()) or not state.has(producer):
                return number  # otherwise another execution has committed it
        return len(chunks)


@dataclass
class MapWriter(SinkWriter):
    """One task's changes of one epoch, staged in chunks."""

    map: JetMap
    transaction: TransactionId
    _changes: list[MapChange] = field(default_factory=list)
    _size: int = 0

    def __post_init__(self) -> None:
        area = StoreArea(self.map.store, self.transaction.job, self.transaction.sink)
        self._segment = SegmentWriter(area, self.transaction, self.map.name)

    def write(self, batch: pa.RecordBatch) -> None:
        for change in self._read(batch):
            if (
                len(self._changes) == CHUNK_CHANGES_MAX
                or self._size + size_of(change) > CHUNK_BYTES_MAX
            ):
                self._flush()
            self._changes.append(change)
            self._size += size_of(change)

    def prepare(self) -> tuple[Artifact, ...]:
        self._flush()
        return self._segment.finish()

    def abort(self) -> None:
        self._segment.remove()

    def _read(self, batch: pa.RecordBatch) -> Iterator[MapChange]:
        columns = [column.to_pylist() for column in batch.columns]
        count = self.map.partition_count
        for *key_columns, value in zip(*columns, strict=True):
            key = key_columns[0] if len(key_columns) == 1 else tuple(key_columns)
            kind = DELETE if value is None else PUT
            yield MapChange(kind, partition_of(key, count), encode_key(key), value or b"")

    def _flush(self) -> None:
        if self._changes:
            self._segment.append(encode_changes(self._changes), len(self._changes))
            self._changes, self._size = [], 0


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(quoted_name(name))


def _key_column(name: str, type: DataType) -> Column:
    from pyspark.sql.types import BinaryType, BooleanType, IntegralType, StringType

    if isinstance(type, IntegralType):
        return _column(name).cast("bigint")
    if isinstance(type, StringType | BooleanType | BinaryType):
        return _column(name)
    raise PipelineError(
        f"the key column {name!r} is {type.simpleString()}.",
        cure="Keys are texts, integers, booleans or bytes: convert it, for a timestamp "
        "for example with unix_millis().",
    )


_REPEATABLE = "#"
"""Suffix of a producer's name for epochs below exactly-once."""


def _producer_name(job: str, sink: str) -> str:
    return f"{job}/{sink}"


def _producer(context: CommitContext, epoch_id: int, number: int) -> Producer:
    name = _producer_name(context.job, context.sink)
    if context.repeatable:
        return Producer(
            f"{name}{_REPEATABLE}", (context.execution_id, epoch_id, number), is_sink=True
        )
    return Producer(name, (context.timeline, epoch_id, number), is_sink=True)
