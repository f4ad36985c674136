"""Messages that a topic never takes: without a cluster."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.kafka.topic_limits import TopicLimits, record_bytes

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
