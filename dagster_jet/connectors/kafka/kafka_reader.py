"""Reader of a Kafka source: which offsets exist and which are read.

The position is the next offset of each partition, and the id of each topic: offsets are not valid
in another topic of the same name. A partition that is not in the position is new, and read from its
beginning. The first execution begins at `start`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.kafka.cluster import Cluster, LastError, client_library
from dagster_jet.connectors.kafka.offsets import Offsets, Partition, Start, Topics
from dagster_jet.connectors.kafka.ranges import Range, by_task, names_of, share
from dagster_jet.connectors.kafka.read_task import POSITION_COLUMN, ReadTask
from dagster_jet.connectors.task_shares import FixedShares, TaskShares, WholeSplit
from dagster_jet.connectors.values.avro_records import AvroRecords
from dagster_jet.connectors.values.debezium_changes import DebeziumChanges
from dagster_jet.connectors.values.json_objects import VALUE_COLUMN, JsonObjects
from dagster_jet.contract import (
    Acknowledges,
    BadRowRule,
    Lag,
    SourceFrame,
    SourceReader,
    SplitParameters,
)
from dagster_jet.errors import InputLostError, SourceError, SourceUnavailableError
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
_logger = logging.getLogger(__name__)

LIST_S = 5.0
"""Interval of listing partitions and topics, in seconds."""
NEWS_S = 1.0
"""Seconds for which a poll waits if it finds nothing new."""
_LOOK_S = 0.02


@dataclass(frozen=True)
class Reading:
    """Settings of the source."""

    cluster: Cluster
    topics: Topics
    schema: str | None
    """DDL of the values' columns; None: raw values."""
    start: Start
    metadata: Collection[str]
    skips_lost: bool
    tombstones: str
    """Handling of messages without a value: skip, pass, dead-letter."""
    group: str
    """Consumer group whose offsets are written for dashboards; "": none."""
    avro: AvroRecords | None = None
    debezium: DebeziumChanges | None = None


@dataclass(frozen=True)
class Found:
    """Result of a poll, by partition."""

    first: Mapping[Partition, int]
    last: Mapping[Partition, int]
    starts: Mapping[Partition, int]
    """Start offsets of partitions that are new to the reader."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    end: Mapping[Partition, int] = field(default_factory=dict)
    """Ends including undecided messages; those after `last` may still be aborted."""
    gone: frozenset[Partition] = frozenset()
    """Known partitions whose topic does not exist any more."""


@dataclass
class KafkaReader(SourceReader):
    """Reads the topics of a `KafkaSource`."""

    acknowledges = Acknowledges.PROGRESS
    counts_gaps = True
    is_partitioned = True

    source: Reading
    job: str
    stage: str
    bad_rows: BadRowRule | None
    _next: dict[Partition, int] = field(default_factory=dict)
    _last: dict[Partition, int] = field(default_factory=dict)
    _end: dict[Partition, int] = field(default_factory=dict)
    _gone: set[Partition] = field(default_factory=set)
    """Read partitions that were deleted; their offsets are kept in case the topic comes back."""
    _topic_ids: dict[str, str] = field(default_factory=dict)
    _is_new: bool = True
    """True until a poll is accepted or its position restored: the next execution begins at
    `start`, too."""
    _lost: int = 0
    _is_away: bool = False
    """True if the last poll got no answer: a planned split could not be read."""
    _acknowledged: dict[str, int] = field(default_factory=dict)
    # For the polling thread only:
    _is_first: bool = True
    """True while no partition is known, not even from a position: `start` applies."""
    _known: set[Partition] = field(default_factory=set)
    _seen: Found | None = None
    _ids_seen: Mapping[str, str] = field(default_factory=dict)
    _starts: dict[Partition, int] = field(default_factory=dict)
    """Start offsets that no poll has returned yet, because it failed."""
    _vanished: set[Partition] = field(default_factory=set)
    """Entries of `Found.gone` that no poll has returned yet."""
    _listed_at: float = float("-inf")
    _offsets: Offsets | None = None
    _group: Any = None

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._next = {Partition.named(name): at for name, at in position["offsets"].items()}
        self._topic_ids = dict(position["topics"])
        self._gone = {Partition.named(name) for name in position.get("gone", ())}
        self._known = self._next.keys() - self._gone
        self._is_first = self._is_new = position.get("new", False)

    # --- on the source's own thread ---

    def poll(self) -> Found:
        until, listed_at = time.monotonic() + NEWS_S, self._listed_at
        try:
            while (found := self._look()) == self._seen and time.monotonic() < until:
                time.sleep(_LOOK_S)
            # A topic that was recreated may have as many messages as the old one had.
            is_new = found != self._seen or self._listed_at != listed_at
            answer = self._with_ids_and_end(found, is_new=is_new)
        except SourceUnavailableError:
            self._is_away = True
            raise
        self._is_away = False
        self._seen = Found(answer.first, answer.last, starts={})
        self._starts, self._vanished = {}, set()
        return answer

    def _with_ids_and_end(self, found: Found, *, is_new: bool) -> Found:
        """Adds topic ids and ends, queried after the offsets, so that no end is less than `last`.
        An id does not come back, so the offsets are this topic's; if an id is new, they are queried
        again."""
        topics = {partition.topic for partition in self._known} if is_new else set()
        ids, end = self._asked().ids_and_end(topics, sorted(found.last))
        if is_new and ids != self._ids_seen:
            found, self._ids_seen = self._look(), ids
            _, end = self._asked().ids_and_end((), sorted(found.last))
        return replace(found, topic_ids=ids, end=end)

    def _look(self) -> Found:
        """Raises `SourceUnavailableError` while brokers disagree on which partitions exist."""
        offsets = self._asked()
        for _ in range(2):
            if time.monotonic() - self._listed_at > LIST_S:
                self._list(offsets)
            known = sorted(self._known)
            first, last = offsets.first_and_last(known)
            if len(first) == len(last) == len(known):
                return Found(first, last, dict(self._starts), gone=frozenset(self._vanished))
            self._listed_at = float("-inf")
        lacking = sorted(self._known - (first.keys() & last.keys()))
        raise SourceUnavailableError(
            f"the broker of {lacking[0].name} does not know it.", job=self.job, stage=self.stage
        )

    def _list(self, offsets: Offsets) -> None:
        listed = set(offsets.partitions())
        missing, topics = self._known - listed, {partition.topic for partition in listed}
        # A topic that one broker does not list may still exist: query another one.
        still = offsets.topic_ids({partition.topic for partition in missing} - topics)
        self._vanished |= {
            partition
            for partition in missing
            if partition.topic not in topics | still.keys()
            and self.source.topics.has(partition.topic)
        }
        self._known -= {partition for partition in missing if partition.topic not in still}
        if new := sorted(listed - self._known):
            begin = self.source.start if self._is_first else "earliest"
            starts = offsets.start(new, begin)
            self._starts.update(starts)
            self._known.update(starts)
        self._listed_at = time.monotonic()
        self._is_first = False

    def _asked(self) -> Offsets:
        if self._offsets is None:
            self._offsets = Offsets(self.source.cluster, self.source.topics, self.job, self.stage)
        return self._offsets

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    # --- on the execution's threads ---

    def accept(self, found: Found) -> None:
        self._is_new = False
        if self.source.debezium is not None and self._next:
            self._check_added(found.starts.keys() - self._next.keys())
        for partition, start in found.starts.items():
            self._next.setdefault(partition, start)
        same = {topic for topic, id in found.topic_ids.items() if self._topic_ids.get(topic) == id}
        self._check_topics(found.topic_ids)
        self._gone -= found.first.keys()
        for partition in sorted(found.gone - self._gone):
            self._check_deleted(partition)
        for partition, first in found.first.items():
            self._check_retention(partition, first)
            is_same = partition.topic in same
            self._check_end(partition, first, found.last.get(partition), is_same=is_same)
        self._last.update(found.last)
        self._end.update(found.end)

    def _check_added(self, partitions: Collection[Partition]) -> None:
        """Refuses new partitions: changes of a key are then in two of them."""
        if partitions:
            new = min(partitions)
            raise SourceError(
                f"{new.name} was added to the topic: changes of one key are now in several "
                "partitions, which have no common order.",
                job=self.job,
                stage=self.stage,
                position=new.name,
                cure="Do not add partitions to a topic of Debezium's. Let Debezium write to a new "
                "topic, with a new snapshot, and read that by a source of another name.",
            )

    def _check_topics(self, ids: Mapping[str, str]) -> None:
        """Detects, by its id, a topic that was created again: it may be as long as the old one, so
        offsets cannot show it."""
        for topic, id in ids.items():
            if self._topic_ids.get(topic, id) == id:
                continue
            read = {p: at for p, at in self._next.items() if p.topic == topic and at}
            unfinished = {p: at for p, at in read.items() if p not in self._gone}
            if unfinished and not self.source.skips_lost:
                partition, at = min(unfinished.items())
                raise InputLostError(
                    "the topic was deleted and recreated: the saved offset is an offset of the "
                    "old topic.",
                    job=self.job,
                    stage=self.stage,
                    position=f"{partition.name}@{at}",
                    cure='sources.kafka(on_data_loss="skip") reads the new one from its beginning.',
                )
            self._next.update(dict.fromkeys(read, 0))
            for partition in read:  # the new topic may have fewer
                self._forget_end(partition)
        self._topic_ids.update(ids)

    def _check_deleted(self, partition: Partition) -> None:
        """Handles a topic that was deleted and, as far as known, not created again."""
        at, end = self._next[partition], self._end.get(partition)
        if not self.source.skips_lost and (end is None or at < end):
            how_many = (
                "whether it had more messages is not known, because it was deleted while the job "
                "did not run"
                if end is None
                else f"{end - at} messages behind it were not read"
            )
            raise InputLostError(
                f"the topic was deleted: {how_many}.",
                job=self.job,
                stage=self.stage,
                position=f"{partition.name}@{at}",
                cure='To continue without it, use sources.kafka(on_data_loss="skip").',
            )
        self._lost += 0 if end is None else max(0, end - at)
        self._gone.add(partition)
        self._forget_end(partition)

    def _forget_end(self, partition: Partition) -> None:
        self._last.pop(partition, None)
        self._end.pop(partition, None)

    def _check_retention(self, partition: Partition, first: int) -> None:
        at = self._next[partition]
        if at >= first:
            return
        if not self.source.skips_lost:
            raise InputLostError(
                f"retention has removed {first - at} messages that were not read yet.",
                job=self.job,
                stage=self.stage,
                position=f"{partition.name}@{at}",
                cure="Raise the topic's retention. To continue without the removed messages, use "
                'sources.kafka(on_data_loss="skip").',
            )
        self._lost += first - at
        self._next[partition] = first

    def _check_end(
        self, partition: Partition, first: int, last: int | None, *, is_same: bool
    ) -> None:
        """Detects another log: a last stable offset never goes back.

        The topic that was read, by its id, has lost its newest messages, as after an unclean
        election of a leader: the others were read. A topic without a known id may be a new one.
        """
        at = self._next[partition]
        if last is None or at <= last:
            return
        if not self.source.skips_lost:
            cause, goes_on = (
                ("lost its newest messages", "goes on at its present end")
                if is_same
                else ("was recreated, or lost its newest messages", "reads it from its beginning")
            )
            raise InputLostError(
                f"the topic ends before the saved offset, at {last}: it {cause}.",
                job=self.job,
                stage=self.stage,
                position=f"{partition.name}@{at}",
                cure=f'sources.kafka(on_data_loss="skip") {goes_on}.',
            )
        self._next[partition] = last if is_same else first

    def waiting(self) -> Lag:
        if self._is_away:
            return Lag(0, {})
        return Lag(sum(self._behind().values()), self.partitions())

    def _behind(self) -> dict[Partition, int]:
        """Number of readable offsets by partition."""
        there = {p: at for p, at in self._next.items() if p not in self._gone}
        return {p: max(0, self._last.get(p, at) - at) for p, at in there.items()}

    def partitions(self) -> dict[str, int]:
        """Includes what is after an open transaction: it cannot be read, but it waits."""
        return {
            p.name: max(count, self._end.get(p, 0) - self._next[p])
            for p, count in self._behind().items()
        }

    def plan(self, max_rows: int) -> tuple[Range, ...] | None:
        if self._is_away:
            return None
        taken = share(self._behind(), max_rows)
        split, alone = [], len(self._next) == 1
        for partition, count in sorted(taken.items()):
            start = self._next[partition]
            split.append(Range(partition, start, start + count, alone))
            self._next[partition] = start + count
        return tuple(split) or None

    def frame(self, spark: SparkSession, split: tuple[Range, ...]) -> SourceFrame:
        shares, names = self._shares(spark, split), names_of(split)
        task = self._task(shares, names, with_position=self.bad_rows is not None)
        return self._frame(spark, task, names)

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Sequence[Range]], partitions: int
    ) -> SourceFrame | None:
        task = self._task(WholeSplit(split), None, with_position=self.bad_rows is not None)
        return self._frame(spark, task, tuple(map(str, range(partitions))))

    def split_parameters(self, split: tuple[Range, ...]) -> SplitParameters | None:
        return SplitParameters(split, names_of(split))

    def _frame(self, spark: SparkSession, task: ReadTask, names: tuple[str, ...]) -> SourceFrame:
        from pyspark.sql import functions as F

        messages = _messages(spark, task)
        if self.source.schema is None:
            rows = messages.withColumnRenamed(VALUE_COLUMN, "value").drop(POSITION_COLUMN)
            return SourceFrame(rows, partitions=names)
        frames = self._values.frames(messages, self.bad_rows, self.stage, F.col(POSITION_COLUMN))
        rows = frames.rows.drop(POSITION_COLUMN)
        return SourceFrame(rows, frames.dead_letters, frames.shared, names)

    def locate_bad_row(self, spark: SparkSession, split: tuple[Range, ...]) -> str | None:
        from pyspark.sql import functions as F

        if self.source.schema is None:
            return None
        task = self._task(self._shares(spark, split), names_of(split), with_position=True)
        messages = _messages(spark, task)
        return self._values.first_bad(messages, F.col(POSITION_COLUMN))

    def locate_row(
        self,
        spark: SparkSession,
        split: tuple[Range, ...],
        is_meant: Callable[[DataFrame], Column],
    ) -> str | None:
        if self.source.schema is None:
            return None
        task = self._task(self._shares(spark, split), names_of(split), with_position=True)
        return self._values.first_where(_messages(spark, task), POSITION_COLUMN, is_meant)

    @property
    def _values(self) -> JsonObjects:
        assert self.source.schema is not None
        return JsonObjects(self.source.schema, passes_null=self.source.tombstones == "pass")

    def _shares(self, spark: SparkSession, split: tuple[Range, ...]) -> TaskShares[Range]:
        return FixedShares(tuple(by_task(split, int(spark.sparkContext.defaultParallelism))))

    def _task(
        self, shares: TaskShares[Range], names: tuple[str, ...] | None, *, with_position: bool
    ) -> ReadTask:
        return ReadTask(
            self.source.cluster,
            shares,
            names,
            self.stage,
            self.source.metadata,
            with_position,
            self.source.skips_lost,
            self.source.tombstones == "skip",
            self.source.avro,
            self.source.debezium,
        )

    def position(self) -> dict[str, Any]:
        offsets = {p.name: at for p, at in sorted(self._next.items())}
        position: dict[str, Any] = {
            "offsets": offsets,
            "topics": dict(sorted(self._topic_ids.items())),
        }
        if self._is_new:
            position["new"] = True
        if self._gone:
            position["gone"] = sorted(partition.name for partition in self._gone)
        return position

    def take_lost(self) -> int:
        lost, self._lost = self._lost, 0
        return lost

    # --- for dashboards: offsets of a consumer group, in phase 2 ---

    def unacknowledged(self) -> dict[str, int]:
        """Offsets not yet written for dashboards."""
        if not self.source.group:
            return {}
        now = {partition.name: at for partition, at in self._next.items()}
        return {name: at for name, at in now.items() if self._acknowledged.get(name) != at}

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Ignored: nothing depends on them, and `acknowledge` follows."""

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        if not self.source.group or not messages:
            return
        if self._group is None:
            self._group = _group(self.source.cluster, self.source.group)
        library = client_library()
        partitions = [(Partition.named(name), int(at)) for name, at in messages.items()]
        offsets = [library.TopicPartition(p.topic, p.number, at) for p, at in partitions]
        # For dashboards only: no wait for the answer; the next snapshot writes newer offsets.
        self._group.commit(offsets=offsets, asynchronous=True)
        self._group.poll(0)
        self._acknowledged.update(messages)


def _messages(spark: SparkSession, task: ReadTask) -> DataFrame:
    tasks = task.shares.tasks
    return spark.range(0, tasks, 1, tasks).mapInArrow(OwnTask(task, task.stage), task.ddl)


def _warn(error: Any, partitions: Any) -> None:
    if error is not None:
        _logger.warning("the group's offsets were not written: %s", error.str())


def _group(cluster: Cluster, name: str) -> Any:
    settings = cluster.settings(
        **{
            "group.id": name,
            "enable.auto.commit": False,
            # Closing waits at most this long for the answer to the last commit.
            "session.timeout.ms": 1_000,
            "error_cb": LastError(),
            "on_commit": _warn,
        }
    )
    return client_library().Consumer(settings)
