"""Base class of readers of queues that delete acknowledged messages.

Retention of message ids: `ReadMessages` keeps the newest ids whose acknowledgement the queue has
confirmed. An unconfirmed id (a connection broke, or an earlier process had the message) is kept
until the message is redelivered, or until the queue was reachable for `UNPROVEN_S` since. Newer ids
do not evict it: a frozen process may hold its messages for long.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

from dagster_jet.connectors.carried_rows import BYTES_MAX, can_be_carried, carried_frame
from dagster_jet.connectors.messages import ReadMessages
from dagster_jet.connectors.values import JsonObjects, RawValues
from dagster_jet.contract import (
    Acknowledges,
    Backlog,
    BadRowRule,
    Lag,
    SourceFrame,
    SourceReader,
    SplitParameters,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POSITION_COLUMN = "__position"
"""Column of a message's position, for dead letters; not part of the output."""
UNPROVEN_S = 86_400.0
"""Retention of unconfirmed ids, in seconds during which the queue was reachable."""


class QueueMessage(Protocol):
    """A new message."""

    @property
    def message_id(self) -> str: ...

    @property
    def handle(self) -> str:
        """The handle that acknowledges it."""
        ...

    @property
    def body(self) -> bytes: ...


M = TypeVar("M", bound=QueueMessage)


@dataclass(frozen=True)
class Found(Generic[M]):
    """Result of a poll."""

    new: tuple[M, ...]
    proven: tuple[str, ...]
    """Ids of redelivered messages that a snapshot already has; the poll acknowledged them."""
    connected_s: float
    """Seconds during which the queue was reachable since the last poll."""
    backlog: Backlog | None = None
    """State of the backlog; None if the poll began before `mark_backlog`."""


class MessageReader(SourceReader, Generic[M]):
    """Reads a queue in one execution. A split is a tuple of messages.

    Subclasses implement `poll`, `acknowledge` and `close`, which run on the source's own thread and
    own `_seen_at`. All methods here run on the execution's threads, except `_stood`.
    """

    acknowledges = Acknowledges.MESSAGES

    def __init__(
        self,
        job: str,
        stage: str,
        bad_rows: BadRowRule | None,
        values: JsonObjects | RawValues,
        remembered_max: int,
    ) -> None:
        self.job, self.stage = job, stage
        self.read = ReadMessages(remembered_max)
        self._recognises = remembered_max > 0
        """Whether messages have ids by which a redelivery is recognised."""
        self._bad_rows, self._values = bad_rows, values
        self._waiting: dict[str, M] = {}
        self._waiting_bytes = 0
        self._connected_s = 0.0
        """Seconds during which the queue was reachable, in all executions of the job."""
        self._seen_at: float | None = None
        """Monotonic time of the last answer; None while the queue is unreachable."""
        self._reads_backlog = False
        """True once polls report the backlog, which the first of them counts."""
        self._backlog = Backlog.READ

    @abstractmethod
    def _table(self, messages: Sequence[M]) -> pa.Table:
        """Returns a table with `VALUE_COLUMN`, `POSITION_COLUMN` and all other columns."""

    def _stood(self) -> float:
        now = time.monotonic()
        seen_at, self._seen_at = self._seen_at, now
        return 0.0 if seen_at is None else now - seen_at

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self.read.restore(position["remembered"], position["unproven"])
        self._connected_s = position["connected_s"]

    def accept(self, found: Found[M]) -> None:
        self._connected_s += found.connected_s
        if found.backlog is not None and self._backlog is not Backlog.READ:
            self._backlog = found.backlog
        self.read.acknowledged(dict.fromkeys(found.proven))
        self.read.forget_unproven(self._connected_s - UNPROVEN_S)
        for message in found.new:
            if self.read.deliver(message.message_id, message.handle):
                self._waiting[message.message_id] = message
                self._waiting_bytes += len(message.body)

    def mark_backlog(self) -> None:
        self._backlog = Backlog.WAITING
        self._reads_backlog = True

    def backlog(self) -> Backlog:
        return self._backlog

    def waiting(self) -> Lag:
        count = len(self._waiting)
        return Lag(count, {"messages": count}, self._waiting_bytes)

    def plan(self, max_rows: int) -> tuple[M, ...] | None:
        taken = list(islice(self._waiting.values(), max(1, max_rows)))
        for message in taken:
            del self._waiting[message.message_id]
        self._waiting_bytes -= sum(len(message.body) for message in taken)
        self.read.handed_out({message.message_id: message.handle for message in taken})
        return tuple(taken) or None

    def frame(self, spark: SparkSession, split: tuple[M, ...]) -> SourceFrame:
        return self._frame(self._messages(spark, split))

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], pa.Table], partitions: int
    ) -> SourceFrame | None:
        messages = carried_frame(spark, split, self._table(()), self.stage)
        return None if messages is None else self._frame(messages)

    def split_parameters(self, split: tuple[M, ...]) -> SplitParameters | None:
        if sum(len(message.body) for message in split) > BYTES_MAX:
            return None
        messages = self._table(split)
        return SplitParameters(messages) if can_be_carried(messages) else None

    def _frame(self, messages: DataFrame) -> SourceFrame:
        from pyspark.sql import functions as F

        position = F.col(POSITION_COLUMN)
        frames = self._values.frames(messages, self._bad_rows, self.stage, position)
        return replace(frames, rows=frames.rows.drop(POSITION_COLUMN))

    def locate_bad_row(self, spark: SparkSession, split: tuple[M, ...]) -> str | None:
        from pyspark.sql import functions as F

        return self._values.first_bad(self._messages(spark, split), F.col(POSITION_COLUMN))

    def _messages(self, spark: SparkSession, split: tuple[M, ...]) -> DataFrame:
        return spark.createDataFrame(self._table(split))

    def position(self) -> dict[str, Any]:
        return {
            "remembered": self.read.remembered(),
            "unproven": self.read.unproven(),
            "connected_s": self._connected_s,
        }

    def unacknowledged(self) -> dict[str, Any]:
        return self.read.unacknowledged()

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Their acknowledgement is unproven, so a poll acknowledges them as soon as they come."""
        if self._recognises:
            self.read.acknowledged(messages, unproven_since=self._connected_s)

    @abstractmethod
    def acknowledge(self, messages: Mapping[str, Any]) -> bool:
        """See `SourceReader.acknowledge`."""

    def _note_acknowledged(self, messages: Mapping[str, Any], proven: set[str]) -> bool:
        """Notes acknowledged messages; `proven` has the ids that the queue has confirmed. Returns
        whether these are all. Without ids no delivery is recognised, so none is remembered."""
        if not self._recognises:
            proven = set(messages)
        self.read.acknowledged({one: messages[one] for one in messages if one in proven})
        unproven = {one: messages[one] for one in messages if one not in proven}
        self.read.acknowledged(unproven, unproven_since=self._connected_s)
        return not unproven
