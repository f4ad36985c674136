"""Routing into queues, full queues included: nothing is lost and nothing is sent twice."""

import pytest

from dagster_jet.core.partition import partition_id
from dagster_jet.dag import (
    DONE,
    ContractError,
    Edge,
    OutboundEdge,
    Partitioning,
    PartitionKey,
    Watermark,
)
from tests.unit.dag.rig import Sink

BY_REMAINDER = Partitioning(lambda key, count: key % count, 271)


def outbound(edge, rooms, producer=0, partitioning=BY_REMAINDER):
    sinks = [Sink(room) for room in rooms]
    return OutboundEdge(edge, sinks, producer=producer, partitioning=partitioning), sinks


def items(sinks):
    return [sink.items for sink in sinks]


def test_unicast_takes_turns_and_passes_over_a_full_queue():
    edge, sinks = outbound(Edge("a").unicast(), [2, 1, 2])
    assert all(edge.offer(i) for i in range(5)) and not edge.offer(5)
    assert items(sinks) == [[0, 3], [1], [2, 4]]


def test_isolated_keeps_to_one_consumer():
    edge, sinks = outbound(Edge("a").isolated(), [9, 9], producer=3)
    assert edge.offer(1) and edge.offer(2)
    assert items(sinks) == [[], [1, 2]]


def test_partitioned_goes_to_the_owner_of_the_key():
    edge, sinks = outbound(Edge("a").partitioned(lambda item: item), [9, 9])
    assert all(edge.offer(i) for i in range(4))
    assert items(sinks) == [[0, 2], [1, 3]]


def test_broadcast_serves_each_consumer_once_however_often_it_is_offered():
    edge, sinks = outbound(Edge("a").broadcast(), [1, 0])
    assert not edge.offer("x") and not edge.offer("x")
    sinks[1].room = 1
    assert edge.offer("x")
    assert items(sinks) == [["x"], ["x"]]


@pytest.mark.parametrize("routing", ["unicast", "isolated", "broadcast"])
def test_watermarks_go_to_everybody(routing):
    edge, sinks = outbound(getattr(Edge("a"), routing)(), [9, 9])
    assert edge.offer(Watermark(1))
    assert items(sinks) == [[Watermark(1)]] * 2


def test_an_item_of_many_keys_is_split_and_its_parts_stay_in_order():
    def split(item, partition_count):
        return [(number % partition_count, number) for number in item]

    edge, sinks = outbound(Edge("a").partitioned_by(split), [1, 9])
    assert not edge.offer([2, 4, 1, 6, 3])
    assert items(sinks) == [[2], [1, 3]]
    sinks[0].room = 9
    assert edge.offer([2, 4, 1, 6, 3])
    assert items(sinks) == [[2, 4, 6], [1, 3]]


def test_a_partition_key_is_not_hashed():
    assert Partitioning(partition_id, 271).partition_of(PartitionKey(17, "run")) == 17


@pytest.mark.parametrize("key", [{}, 2**64, "\ud800", PartitionKey(271), PartitionKey(-1)])
def test_a_key_that_has_no_partition_is_named(key):
    partitioning = Partitioning(lambda key, n: partition_id(key, partition_count=n), 271)
    edge, _ = outbound(Edge("a").partitioned(lambda item: item), [9], partitioning=partitioning)
    with pytest.raises(ContractError, match="has no partition"):
        edge.offer(key)


@pytest.mark.parametrize("part", [None, DONE, Watermark(1)])
def test_a_part_is_an_item(part):
    edge, _ = outbound(Edge("a").partitioned_by(lambda item, n: [(0, 1), (0, part)]), [9])
    with pytest.raises(ContractError, match="splits into"):
        edge.offer("item")
