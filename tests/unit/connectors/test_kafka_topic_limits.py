"""Messages that a topic never takes: without a cluster."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.kafka.markers import Marker, id_of
from dagster_jet.connectors.kafka.topic_limits import SeveralTopics, TopicLimits, record_bytes

LIMITS = TopicLimits("t", 3, 1_000, before_ms=10**8, after_ms=10**8, needs_key=True)
NOW_MS = time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"key": None}, "it has no key"),
        ({"partition": 2}, None),
        ({"partition": 3}, "the topic has 3 partitions, and no partition 3"),
        ({"partition": -1}, "the topic has 3 partitions, and no partition -1"),
        ({"partition": 2**32}, "partition 4294967296"),
        ({"at_ms": NOW_MS}, None),
        ({"at_ms": 0}, "not after 1970"),
        ({"at_ms": NOW_MS + 10**9}, "ahead"),
        ({"at_ms": NOW_MS - 10**9}, "ago"),
        ({"value": b"x" * 900}, None),
        ({"value": b"x" * 1_000}, "max.message.bytes is 1000"),
        ({"headers": [("h", b"x" * 1_000)]}, "max.message.bytes"),
        ({"headers": [("h", None), ("a\0b", b"x")]}, "the name of a header has a zero byte"),
        ({"value": None}, None),
    ],
)
def test_what_a_topic_refuses(changed: dict[str, Any], says: str | None) -> None:
    one = {"key": b"k", "value": b"v", "headers": None, "partition": None, "at_ms": None, **changed}
    good = {**one, "key": b"k", "value": b"v", "headers": None, "partition": 0, "at_ms": NOW_MS}
    both = [good, one]
    batch = pa.record_batch(
        {
            "__key": pa.array([m["key"] for m in both], pa.binary()),
            "__value": pa.array([m["value"] for m in both], pa.binary()),
            "__headers": pa.array([m["headers"] for m in both], pa.map_(pa.string(), pa.binary())),
            "__partition": pa.array([m["partition"] for m in both], pa.int64()),
            "__timestamp": pa.array([m["at_ms"] for m in both], pa.int64()),
        }
    )
    found = LIMITS.refused(batch)
    assert list(found) == ([] if says is None else [1])
    assert says is None or says in found[1].reason


def test_the_size_of_a_record_is_the_protocols() -> None:
    # Length (1), attributes, two differences, key (1 + 1), value (1 + 1), headers (1).
    assert record_bytes(b"k", b"v", ()) == 1 + 3 + 2 + 2 + 1
    assert record_bytes(None, b"x" * 100, (("h", None),)) == 2 + 3 + 1 + 102 + 1 + 2 + 1


def test_each_topic_has_limits_of_its_own() -> None:
    several = SeveralTopics("to", {"a": TopicLimits("a", 1), "b": TopicLimits("b", 9, 1_000)})
    rows = [("a", 0), ("b", 0), ("a", 5), ("b", 5), ("c", 0), (None, 0), ("b", 9)]
    batch = pa.record_batch(
        {
            "__key": pa.array([b"k"] * len(rows), pa.binary()),
            "__value": pa.array([b"v"] * len(rows), pa.binary()),
            "__partition": pa.array([partition for _, partition in rows], pa.int64()),
            "__topic": pa.array([topic for topic, _ in rows], pa.string()),
        }
    )
    found = {number: one.reason for number, one in several.refused(batch).items()}
    assert sorted(found) == [2, 4, 5, 6]
    assert "the topic 'a' refuses it: the topic has 1 partitions" in found[2]
    assert "the column 'to' names the topic 'c', expected one of a, b" in found[4]
    assert "names no topic" in found[5] and "the topic 'b' refuses it" in found[6]
    assert several.message_bytes == 1_000


def test_markers_know_a_topic_that_was_made_anew() -> None:
    ids = {"a": "1", "b": "2"}
    of_both = Marker(1, 0, 1, id_of(ids, ("b", "a")))
    assert Marker.of(of_both.value()) == of_both
    assert of_both.is_of(id_of({**ids, "c": "3"}, ("a", "b", "c")))
    assert of_both.is_of(id_of(ids, ("a",))) and of_both.is_of("") and of_both.is_of("1")
    assert not of_both.is_of(id_of({**ids, "b": "9"}, ("a", "b")))
    assert Marker(1, 0, 1, "1").is_of("1") and not Marker(1, 0, 1, "1").is_of("2")
