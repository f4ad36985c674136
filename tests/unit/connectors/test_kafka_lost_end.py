"""A topic that ends before the saved offset: it has lost its end, or is another one."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_jet import sources
from dagster_jet.connectors.kafka.kafka_reader import Found, KafkaReader
from dagster_jet.connectors.kafka.offsets import Partition
from dagster_jet.errors import InputLostError

PLACE = Partition("t", 0)


def reader(ids: dict[str, str], lost: Any = "skip") -> KafkaReader:
    """A reader that has read up to offset 100."""
    source = sources.kafka("kafka:9092", topics=["t"], schema="v long", on_data_loss=lost)
    made = source.open("j", "s", None)
    made.restore({"offsets": {PLACE.name: 100}, "topics": ids}, None)
    return made


def found(ids: dict[str, str], last: int = 60) -> Found:
    return Found({PLACE: 20}, {PLACE: last}, {}, ids)


@pytest.mark.parametrize(
    ("known", "now", "goes_on_at"),
    [
        ({"t": "a"}, {"t": "a"}, 60),  # the same topic: failed before, it was read again, from 20
        ({"t": "a"}, {"t": "b"}, 20),
        ({}, {}, 20),  # old brokers
        ({}, {"t": "a"}, 20),  # brokers that were old
        ({"t": "a"}, {}, 20),
    ],
)
def test_only_another_topic_is_read_from_its_beginning(
    known: dict[str, str], now: dict[str, str], goes_on_at: int
) -> None:
    following = reader(known)
    following.accept(found(now))
    assert following.position()["offsets"] == {PLACE.name: goes_on_at}
    following.accept(found(now, last=65))
    assert following.waiting().items == 65 - goes_on_at


@pytest.mark.parametrize(
    ("ids", "says", "cure"),
    [
        ({"t": "a"}, "at 60: it lost its newest messages", "goes on at its present end"),
        ({}, "at 60: it was recreated, or lost its newest messages", "reads it from its beginning"),
    ],
)
def test_a_job_that_skips_nothing_fails_and_says_what_skipping_does(
    ids: dict[str, str], says: str, cure: str
) -> None:
    with pytest.raises(InputLostError, match=says) as told:
        reader(ids, "fail").accept(found(ids))
    assert cure in str(told.value)
