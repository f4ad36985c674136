"""Reads messages of ranges in Spark's tasks, by librdkafka.

A range ends by offset, never by count: the client reports the end of a partition
(`enable.partition.eof`), which includes transaction markers and aborted messages. A worker keeps
its consumer for the next epoch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    LastError,
    client_library,
    is_lasting,
    said,
)
from dagster_jet.connectors.kafka.offsets import Partition
from dagster_jet.connectors.kafka.polled import Places, Polled, without_collections
from dagster_jet.connectors.kafka.ranges import Range, names_of
from dagster_jet.connectors.task_shares import TaskShares
from dagster_jet.connectors.values.avro_records import AvroRecords
from dagster_jet.connectors.values.debezium_changes import DebeziumChanges
from dagster_jet.connectors.values.json_objects import VALUE_COLUMN
from dagster_jet.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.errors import ExecutorLostError, InputLostError, SourceError

BATCH = 10_000
SILENCE_S = 60.0
"""Seconds without a message until the task fails; the job restarts from its last snapshot."""
_LOOK_S = 0.1
_LAST_MS = (2**63 - 1) // 1000

METADATA = pa.schema(
    [
        ("_key", pa.binary()),
        ("_headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
    ]
)
_DDL = (
    "binary",
    "array<struct<name: string, value: binary>>",
    "string",
    "int",
    "bigint",
    "timestamp",
)
POSITION_COLUMN = "__position"


def metadata_ddl(names: Collection[str] = METADATA.names) -> str:
    """Returns columns of `METADATA`, in their order."""
    pairs = zip(METADATA.names, _DDL, strict=True)
    return ", ".join(f"{name} {ddl}" for name, ddl in pairs if name in names)


_consumers: dict[str, tuple[Any, LastError]] = {}
"""Consumers of this worker, by settings."""


@dataclass(frozen=True)
class ReadTask:
    """Reads ranges."""

    cluster: Cluster
    shares: TaskShares[Range]
    names: tuple[str, ...] | None
    """Partitions with observed event time, indexed by `SOURCE_PARTITION_COLUMN`. None: those of the
    ranges, all of which one task reads."""
    stage: str
    metadata: Collection[str]
    """Columns of `METADATA` to add."""
    with_position: bool
    skips_lost: bool = False
    skips_tombstones: bool = False
    avro: AvroRecords | None = None
    """Converts Avro values to JSON."""
    debezium: DebeziumChanges | None = None
    """Converts Debezium's messages to JSON."""

    @property
    def ddl(self) -> str:
        metadata = f", {metadata_ddl(self.metadata)}" if self.metadata else ""
        position = f", {POSITION_COLUMN} string" if self.with_position else ""
        return f"{VALUE_COLUMN} binary, {SOURCE_PARTITION_COLUMN} int{metadata}{position}"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ranges in self.shares.to(batches):
            yield from self._read(ranges)

    def _read(self, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
        consumer, last_error = _consumer(self.cluster)
        names = names_of(ranges) if self.names is None else self.names
        places = Places([Partition.named(name) for name in names])
        try:
            # One range per partition at a time, because a consumer has one position in each.
            for some in _rounds(ranges):
                yield from self._read_round(consumer, last_error, some, places)
        finally:
            consumer.unassign()

    def _read_round(
        self, consumer: Any, last_error: LastError, ranges: Sequence[Range], places: Places
    ) -> Iterator[pa.RecordBatch]:
        left = {r.partition: r for r in ranges}
        stops = places.table({r.partition: r.stop for r in ranges})
        consumer.assign([_place(r.partition, r.start) for r in ranges])
        heard = time.monotonic()
        while left:
            # `consume` waits for this many messages or its time-out: ask for no more than can come.
            most = sum(map(len, left.values()))
            with without_collections():
                messages = consumer.consume(min(BATCH, most), _LOOK_S)
                polled, events = Polled.of(messages, places)
                read, ended = polled.before(stops)
                if self.skips_tombstones:
                    read = read.with_values()
                batch = self._batch(read, alone=ranges[0].alone)
            if not messages:
                self._give_up_after(heard, last_error)
                continue
            heard = time.monotonic()
            for event in events:
                range_ = left.get(Partition(event.topic(), event.partition()))
                if range_ is not None and self._is_end(event.error(), event, range_):
                    ended.add(range_.partition)
            for partition in ended & left.keys():
                del left[partition]
                if left:
                    consumer.incremental_unassign([_place(partition)])
            if batch.num_rows:
                yield batch

    def _is_end(self, error: Any, message: Any, range_: Range) -> bool:
        """True if an event means that the range is read. Raises its error otherwise."""
        code = client_library().KafkaError
        if error.code() == code._PARTITION_EOF:
            return bool(message.offset() >= range_.stop)
        if error.code() in (code._AUTO_OFFSET_RESET, code.OFFSET_OUT_OF_RANGE):
            if self.skips_lost:  # it existed when the epoch was planned
                raise ExecutorLostError(
                    "retention has removed messages while they were read.",
                    stage=self.stage,
                    position=f"{range_.partition.name}@{range_.start}",
                    cure="The job restarts from its last snapshot, and goes on without them.",
                )
            raise InputLostError(
                f"retention has removed messages that were not read yet: {said(error)}.",
                stage=self.stage,
                position=f"{range_.partition.name}@{range_.start}",
                cure="Raise the topic's retention. To continue without the removed messages, use "
                'sources.kafka(on_data_loss="skip").',
            )
        if error.code() in (
            code.UNKNOWN_TOPIC_OR_PART,
            code._UNKNOWN_TOPIC,
            code._UNKNOWN_PARTITION,
        ):
            raise ExecutorLostError(
                "the topic was deleted while it was read.",
                stage=self.stage,
                position=f"{range_.partition.name}@{range_.start}",
                cure="The job restarts from its last snapshot, and then reports the lost messages.",
            )
        if not is_lasting(error):
            return False
        raise SourceError(
            f"the topic cannot be read: {said(error)}.",
            stage=self.stage,
            position=range_.partition.name,
            cure="Correct the credentials or the rights (READ on the topic).",
        )

    def _give_up_after(self, heard: float, last_error: LastError) -> None:
        if time.monotonic() - heard < SILENCE_S:
            return
        last = last_error.last
        raise ExecutorLostError(
            f"the cluster has sent nothing for {SILENCE_S:g} s"
            f"{'' if last is None else f': {last.str()}'}.",
            stage=self.stage,
            cure="The job restarts from its last snapshot, and waits for the cluster.",
        )

    def _batch(self, read: Polled, *, alone: bool) -> pa.RecordBatch:
        kind = client_library().Message
        values = read.each(kind.value)
        if self.avro is not None:
            values = self.avro.texts(values)
        if self.debezium is not None:
            values = self.debezium.texts(values, read.each(kind.key), alone=alone)
        columns: list[pa.Array] = [
            pa.array(values, pa.binary()),
            pa.array(read.places, pa.int32()),
        ]
        names = [VALUE_COLUMN, SOURCE_PARTITION_COLUMN]
        fields = (kind.key, _headers, kind.topic, kind.partition, kind.offset, _time_us)
        for column, field in zip(METADATA, fields, strict=True):
            if column.name in self.metadata:
                columns.append(pa.array(read.each(field), column.type))
                names.append(column.name)
        if self.with_position:
            shown = [f"{m.topic()}/{m.partition()}@{m.offset()}" for m in read.messages]
            columns.append(pa.array(shown, pa.string()))
            names.append(POSITION_COLUMN)
        return pa.RecordBatch.from_arrays(columns, names=names)


def _place(partition: Partition, offset: int | None = None) -> Any:
    more = () if offset is None else (offset,)
    return client_library().TopicPartition(partition.topic, partition.number, *more)


def _rounds(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Groups ranges so that no partition occurs twice in a group."""
    left = list(ranges)
    while left:
        some: dict[Partition, Range] = {}
        others = []
        for one in left:
            if one.partition in some:
                others.append(one)
            else:
                some[one.partition] = one
        yield list(some.values())
        left = others


def _consumer(cluster: Cluster) -> tuple[Any, LastError]:
    library = client_library()
    last_error = LastError()
    settings = cluster.settings(
        **{
            "group.id": "dagster_jet",  # a mere name: no offsets are committed, no group is joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 5 * BATCH,
            # Pause before a full queue is filled again; the default loses a second.
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 16 * 1024,
        }
    )
    key = repr(sorted(settings.items()))
    if key not in _consumers:
        _consumers[key] = library.Consumer({**settings, "error_cb": last_error}), last_error
    return _consumers[key]


def _headers(message: Any) -> list[dict[str, Any]] | None:
    headers = message.headers()
    return None if headers is None else [{"name": name, "value": v} for name, v in headers]


def _time_us(message: Any) -> int | None:
    """Time in microseconds since 1970; None if the message has none, or one that int64 cannot
    hold."""
    kind, ms = message.timestamp()
    has_none = kind == client_library().TIMESTAMP_NOT_AVAILABLE or abs(ms) > _LAST_MS
    return None if has_none else ms * 1000
