"""Messages that a topic never takes, by its settings; checked before a message is staged."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    admin_library,
    client_library,
    error_of,
    is_refusal,
    is_unsupported,
)
from dagster_jet.contract import Refused
from dagster_jet.errors import SinkUnavailableError

_CALL_S = 5.0
_UNLIMITED_MS = 1 << 62
_BATCH_BYTES = 61
"""Bytes of a record batch before its first record."""


@dataclass(frozen=True)
class TopicLimits:
    """Limits of one topic at a start."""

    topic: str
    partitions: int
    message_bytes: int | None = None
    """`max.message.bytes`; None if unknown, or if our messages are compressed."""
    before_ms: int = _UNLIMITED_MS
    after_ms: int = _UNLIMITED_MS
    """Maximum ms by which a message's time may be behind or ahead of the broker's clock."""
    needs_key: bool = False
    """True if the topic is compacted."""

    @classmethod
    def of(cls, cluster: Cluster, topic: str, partitions: int) -> TopicLimits:
        """Limits from the cluster's settings; unknown settings impose no limit."""
        said = _settings(cluster, topic)
        # With another type the topic sets its own times.
        by_us = said.get("message.timestamp.type", "CreateTime") == "CreateTime"
        most = _UNLIMITED_MS
        is_plain = not {"compression.type", "compression.codec"} & set(dict(cluster.options))
        return cls(
            topic,
            partitions,
            int(said["max.message.bytes"]) if is_plain and "max.message.bytes" in said else None,
            int(said.get("message.timestamp.before.max.ms", most)) if by_us else most,
            int(said.get("message.timestamp.after.max.ms", most)) if by_us else most,
            "compact" in said.get("cleanup.policy", ""),
        )

    def refused(self, messages: pa.RecordBatch) -> dict[int, Refused]:
        """Refused messages of `messages.message_columns`, by number."""
        columns, nothing = messages.to_pydict(), [None] * messages.num_rows
        now_ms, found = time.time_ns() // 1_000_000, {}
        rows = zip(
            columns["__key"],
            columns["__value"],
            columns.get("__headers", nothing),
            columns.get("__partition", nothing),
            columns.get("__timestamp", nothing),
            strict=True,
        )
        for number, (key, value, headers, partition, at_ms) in enumerate(rows):
            why = self._why(key, value, headers, partition, at_ms, now_ms)
            if why is not None:
                found[number] = self.as_refused(messages, number, why)
        return found

    def as_refused(self, messages: pa.RecordBatch, number: int, why: str) -> Refused:
        """The message `number`, as text for a dead letter."""
        key, value = (messages.column(name)[number].as_py() for name in ("__key", "__value"))
        reason = f"the topic {self.topic!r} refuses it: {why}"
        return Refused(reason, _text(value) or "", _text(key))

    def _why(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
        partition: int | None,
        at_ms: int | None,
        now_ms: int,
    ) -> str | None:
        if key is None and self.needs_key:
            return "it has no key, and the topic is compacted"
        if partition is not None and not 0 <= partition < self.partitions:
            return f"the topic has {self.partitions} partitions, and no partition {partition}"
        if any("\0" in name for name, _ in headers or ()):
            return "the name of a header has a zero byte, where the client would cut it"
        if at_ms is not None and at_ms <= 0:
            return "its time is not after 1970-01-01, which the client takes for none"
        if at_ms is not None and at_ms > now_ms + self.after_ms:
            return (
                f"its time is more than {self.after_ms} ms ahead (message.timestamp.after.max.ms)"
            )
        if at_ms is not None and at_ms < now_ms - self.before_ms:
            return (
                f"its time is more than {self.before_ms} ms ago (message.timestamp.before.max.ms)"
            )
        size = _BATCH_BYTES + record_bytes(key, value, headers or ())
        if self.message_bytes is not None and size > self.message_bytes:
            return f"it has {size} bytes, and max.message.bytes is {self.message_bytes}"
        return None


@dataclass(frozen=True)
class SeveralTopics:
    """Limits of the topics of one sink, whose messages name theirs in `__topic`."""

    column: str
    """Column of the rows that names the topic; for messages."""
    of: Mapping[str, TopicLimits]

    @property
    def message_bytes(self) -> int | None:
        """The smallest limit that is known."""
        known = [n for limits in self.of.values() if (n := limits.message_bytes) is not None]
        return min(known, default=None)

    def refused(self, messages: pa.RecordBatch) -> dict[int, Refused]:
        """As `TopicLimits.refused`; also messages that name no topic of the sink."""
        by_topic: dict[Any, list[int]] = {}
        for number, topic in enumerate(messages.column("__topic").to_pylist()):
            by_topic.setdefault(topic, []).append(number)
        found: dict[int, Refused] = {}
        for topic, numbers in by_topic.items():
            if topic in self.of:
                refused = self.of[topic].refused(messages.take(pa.array(numbers)))
                found.update({numbers[n]: why for n, why in refused.items()})
            else:
                found.update({n: self.as_refused(messages, n, "") for n in numbers})
        return found

    def as_refused(self, messages: pa.RecordBatch, number: int, why: str) -> Refused:
        """As `TopicLimits.as_refused`."""
        topic = messages.column("__topic")[number].as_py()
        if topic in self.of:
            return self.of[topic].as_refused(messages, number, why)
        key, value = (messages.column(name)[number].as_py() for name in ("__key", "__value"))
        named = "no topic" if topic is None else f"the topic {topic!r:.100}"
        reason = f"the column {self.column!r} names {named}, expected one of {', '.join(self.of)}"
        return Refused(reason, _text(value) or "", _text(key))


Limits: TypeAlias = TopicLimits | SeveralTopics


def record_bytes(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """Size of the first record of a batch (https://kafka.apache.org/documentation/#record)."""
    # Attributes, and two deltas to the batch's first record, which are 0.
    body = 3 + _with_length(key) + _with_length(value) + _varint(len(headers))
    body += sum(_with_length(name.encode()) + _with_length(data) for name, data in headers)
    return _varint(body) + body


def _with_length(data: bytes | None) -> int:
    return _varint(-1) if data is None else _varint(len(data)) + len(data)


def _varint(value: int) -> int:
    """Bytes of a zigzag varint, seven bits per byte."""
    code = value << 1 if value >= 0 else (-value << 1) - 1
    return max(1, (code.bit_length() + 6) // 7)


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode("utf-8", "replace")


def _settings(cluster: Cluster, topic: str) -> Mapping[str, Any]:
    """Settings of the topic; empty if we may not query them, or the cluster has no such call.

    Raises:
        SinkUnavailableError: the cluster does not answer now.
    """
    administration = admin_library()
    resource = administration.ConfigResource(administration.ResourceType.TOPIC, topic)
    try:
        described = Administration(cluster).call(
            lambda client: client.describe_configs([resource])[resource].result(_CALL_S)
        )
    except client_library().KafkaException as error:
        raised = error_of(error)
        if raised is not None and (is_refusal(raised) or is_unsupported(raised)):
            return {}
        raise SinkUnavailableError(
            f"the settings of the topic {topic!r} cannot be read."
        ) from error
    except (TimeoutError, concurrent.futures.TimeoutError):
        raise SinkUnavailableError(
            f"the settings of the topic {topic!r} cannot be read: the cluster does not answer."
        ) from None
    return {name: entry.value for name, entry in described.items() if entry.value is not None}
