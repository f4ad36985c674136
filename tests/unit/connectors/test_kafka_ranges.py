"""Offsets are shared evenly, a sink's markers are in one place: without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.connectors.kafka.cluster import Cluster, answered
from dagster_jet.connectors.kafka.markers import PARTITIONS, MarkerReader, Owner
from dagster_jet.connectors.kafka.offsets import Partition
from dagster_jet.connectors.kafka.ranges import ROWS_PER_TASK, Range, by_task, share
from dagster_jet.connectors.kafka.read_task import ReadTask, _rounds
from dagster_jet.connectors.task_shares import FixedShares
from dagster_jet.errors import ExecutorLostError, InputLostError

LENGTHS = st.lists(st.integers(0, 3 * ROWS_PER_TASK), max_size=5)


@given(LENGTHS, st.integers(1, 4 * ROWS_PER_TASK))
def test_an_epoch_has_as_many_as_it_may_and_the_same_of_each(lengths: list[int], most: int) -> None:
    waiting = {Partition("t", number): count for number, count in enumerate(lengths)}
    taken = share(waiting, most)
    assert min(most, sum(lengths)) <= sum(taken.values()) < most + len(lengths) + 1
    for partition, count in waiting.items():
        others = max(taken.values(), default=0)
        assert taken.get(partition, 0) in (count, others, others - 1)


@given(LENGTHS, st.integers(1, 8))
def test_tasks_read_every_offset_once(lengths: list[int], tasks: int) -> None:
    ranges = [Range(Partition("t", n), 7, 7 + count) for n, count in enumerate(lengths) if count]
    found = by_task(ranges, tasks)
    assert len(found) <= tasks
    pieces = sorted((one.partition, one.start, one.stop) for each in found for one in each)
    for whole in ranges:
        at = whole.start
        for partition, start, stop in pieces:
            if partition == whole.partition:
                assert start == at and stop > start
                at = stop
        assert at == whole.stop


def test_a_consumer_has_one_place_in_a_partition() -> None:
    first, second = Partition("t", 0), Partition("t", 1)
    ranges = [Range(first, 0, 2), Range(second, 0, 2), Range(first, 5, 7)]
    assert list(_rounds(ranges)) == [ranges[:2], ranges[2:]]


def test_a_sinks_markers_are_in_one_partition() -> None:
    """A marker's partition depends on neither its timeline nor the part of the sink; other sinks'
    are elsewhere."""
    owner = Owner("store", "jet", "job", "sink")
    assert replace(owner, part="0-1/rolled").partition == owner.partition
    found = {replace(owner, job=f"job {number}").partition for number in range(1000)}
    assert found == set(range(PARTITIONS))


def test_a_marker_topic_that_is_not_there_is_not_one_without_markers() -> None:
    class Admin:
        def list_offsets(self, asked: Any, **_: Any) -> dict[Any, Future[Any]]:
            answer: Future[Any] = Future()
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            return dict.fromkeys(asked, answer)

        def poll(self, _: float) -> None:
            """Nothing else has happened."""

    reader = MarkerReader(Cluster("h:1"), "markers", Owner("store", "jet", "job", "sink"))
    reader._administration._client = Admin()
    with pytest.raises(TimeoutError, match="the topic markers does not exist"):
        reader.newest()


@pytest.mark.parametrize(
    ("skips_lost", "raised"), [(False, InputLostError), (True, ExecutorLostError)]
)
def test_messages_that_go_while_they_are_read(skips_lost: bool, raised: type[Exception]) -> None:
    """A restart counts them as lost, if it may."""
    task = ReadTask(Cluster("h:1"), FixedShares(()), (), "s", (), False, skips_lost)
    with pytest.raises(raised, match=r"'t/0@3': retention has removed messages"):
        task._is_end(
            KafkaError(KafkaError._AUTO_OFFSET_RESET), None, Range(Partition("t", 0), 3, 5)
        )


def test_an_offset_that_is_none_is_no_answer():
    """`list_offsets` returns -1 without an error when the connection is cut. Taken for the end of a
    topic, it meant that the topic was "made anew"; for that of the markers, that nothing was
    committed."""
    assert answered(0) == 0 and answered(-1) == -1
    with pytest.raises(TimeoutError, match="has not returned its offsets"):
        answered(confluent_kafka.OFFSET_INVALID)
