"""Messages field by field say the same as message by message: without a broker."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.connectors.kafka.offsets import Partition
from dagster_jet.connectors.kafka.polled import NOWHERE, Places, Polled, without_collections

TOPICS = ("b", "a", "unknown")
KNOWN = (Partition("b", 0), Partition("a", 2), Partition("b", 3))
MESSAGES = st.lists(
    st.tuples(st.sampled_from(TOPICS), st.integers(0, 5), st.integers(0, 20), st.booleans())
)
STOPS = st.dictionaries(st.sampled_from(KNOWN), st.integers(0, 20))


def message(topic: str, number: int, offset: int, is_event: bool = False) -> Message:
    error = KafkaError(KafkaError._PARTITION_EOF) if is_event else None
    return Message(topic=topic, partition=number, offset=offset, value=b"v", error=error)


@given(MESSAGES, STOPS)
def test_what_is_read_and_what_is_over(
    given_: list[tuple[str, int, int, bool]], stops: dict[Partition, int]
) -> None:
    """A loop over the messages, in the words of the contract, is the other opinion."""
    places = Places(KNOWN)
    polled, events = Polled.of([message(*one) for one in given_], places)
    read, ended = polled.before(places.table(stops))
    wanted, over = [], set()
    for topic, number, offset, is_event in given_:
        partition = Partition(topic, number)
        if not is_event and partition in stops:
            if offset < stops[partition]:
                wanted.append((partition, offset))
            if offset >= stops[partition] - 1:
                over.add(partition)
    found = [
        (KNOWN[place], offset)
        for place, offset in zip(read.places.tolist(), read.offsets.tolist(), strict=True)
    ]
    assert found == wanted
    assert read.each(Message.offset) == [offset for _, offset in wanted]
    assert ended == over
    assert len(events) == sum(is_event for *_, is_event in given_)


def test_partitions_that_are_not_asked_for_are_nowhere() -> None:
    places = Places([Partition("t", 1)])
    others = [message("t", 0, 5), message("t", 7, 5), message("u", 1, 5), message("t", 1, 5)]
    assert places.of(others).tolist() == [NOWHERE, NOWHERE, NOWHERE, 0]
    assert Places([]).of(others).tolist() == [NOWHERE] * 4


def test_an_event_of_no_partition_is_an_event() -> None:
    """A connection that breaks is told so."""
    event = Message(error=KafkaError(KafkaError._TRANSPORT))
    polled, events = Polled.of([event, message("t", 1, 5)], Places([Partition("t", 1)]))
    assert events == [event] and polled.offsets.tolist() == [5]


@pytest.mark.parametrize("is_on", [True, False])
def test_collections_go_on_as_before(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    try:
        with pytest.raises(RuntimeError), without_collections():
            assert not gc.isenabled()
            raise RuntimeError
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


def test_places_are_those_of_the_names_that_are_given() -> None:
    places = Places(KNOWN)
    assert places.table({KNOWN[1]: 7}).tolist() == [-1, 7, -1, -1]
    found = places.of([message(one.topic, one.number, 0) for one in KNOWN])
    assert np.array_equal(found, np.arange(len(KNOWN)))
