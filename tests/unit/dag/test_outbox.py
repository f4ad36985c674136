"""The outbox: when it refuses, what it accepts after that, and what a block lets through."""

import numpy as np
import pytest

from dagster_jet.dag import ContractError, Outbox, SnapshotEntry, Watermark, broadcast_key
from tests.unit.dag.rig import Sink

VARIANTS = {
    "all edges": lambda outbox, item: outbox.offer(item),
    "one edge": lambda outbox, item: outbox.offer(item, 1),
    "several edges": lambda outbox, item: outbox.offer(item, 0, 1),
    "the snapshot": lambda outbox, item: outbox.offer_to_snapshot(item, "value"),
}


@pytest.fixture(params=VARIANTS)
def offer(request):
    return VARIANTS[request.param]


def outbox_of(*rooms, **settings):
    sinks = [Sink(room) for room in rooms]
    return Outbox(sinks[:-1], sinks[-1], **settings), sinks


def test_the_fourth_offer_of_a_batch_of_three_is_refused(offer):
    outbox, _ = outbox_of(9, 9, 9, batch_limit=3)
    assert [offer(outbox, item) for item in range(4)] == [True, True, True, False]
    assert outbox.has_unfinished_item
    with pytest.raises(ContractError, match="return False from the callback"):
        offer(outbox, 3)
    outbox.begin_call()
    assert offer(outbox, 3) and not outbox.has_unfinished_item


def test_a_block_lets_the_unfinished_item_through_and_nothing_else(offer):
    outbox, _ = outbox_of(9, 9, 9, batch_limit=1)
    assert offer(outbox, 0) and not offer(outbox, 1)
    outbox.block()
    outbox.begin_call()
    assert offer(outbox, 1)
    for _ in range(2):
        outbox.begin_call()
        assert not offer(outbox, 2)
        assert not outbox.has_unfinished_item, "a blocked item need not be offered again"
    outbox.unblock()
    outbox.begin_call()
    assert offer(outbox, "another")


def test_each_edge_gets_a_refused_item_once():
    outbox, (first, second, _) = outbox_of(9, 0, 9)
    for _ in range(3):
        assert not outbox.offer("x")
        outbox.begin_call()
    second.room = 1
    assert outbox.offer("x")
    assert (first.items, second.items) == (["x"], ["x"])


def test_a_refused_entry_must_be_the_same_again():
    outbox, (_, _, snapshot) = outbox_of(9, 9, 0)
    assert not outbox.offer_to_snapshot("k", 1)
    outbox.begin_call()
    with pytest.raises(ContractError, match="still owed"):
        outbox.offer_to_snapshot("k", 2)
    snapshot.room = 1
    outbox.begin_call()
    assert outbox.offer_to_snapshot("k", 1)
    assert snapshot.items == [SnapshotEntry("k", 1)]


def test_without_edges_everything_is_taken():
    outbox, _ = outbox_of(9)
    assert outbox.edge_count == 0 and outbox.offer("dropped") and outbox.offer(Watermark(1))


def test_the_last_watermark_is_the_one_that_went_out_everywhere():
    outbox, (_, second, _) = outbox_of(9, 0, 9)
    assert not outbox.offer(Watermark(5)) and outbox.last_watermark is None
    second.room = 1
    outbox.begin_call()
    assert outbox.offer(Watermark(5)) and outbox.last_watermark == Watermark(5)


def test_a_key_is_saved_once_per_snapshot():
    """A second entry would replace the first one in some runtimes, and follow it in others."""
    outbox, (_, _, snapshot) = outbox_of(9, 9, 1)
    assert outbox.offer_to_snapshot(broadcast_key("txn"), 1)
    assert not outbox.offer_to_snapshot("other", 2)
    snapshot.room = 9
    outbox.begin_call()
    assert outbox.offer_to_snapshot("other", 2), "refused is not saved"
    with pytest.raises(ContractError, match="saved a second entry with key BroadcastKey"):
        outbox.offer_to_snapshot(broadcast_key("txn"), 3)
    outbox.begin_snapshot()
    assert outbox.offer_to_snapshot(broadcast_key("txn"), 3)


@pytest.mark.parametrize("item", [float("nan"), {"x": [float("nan")]}, (1, {"y": float("nan")})])
def test_an_item_with_nan_that_was_refused_may_be_computed_anew(item):
    outbox, (edge, _) = outbox_of(0, 9)
    assert not outbox.offer(item)
    edge.room = 1
    outbox.begin_call()
    assert outbox.offer(eval(repr(item), {"nan": float("inf") - float("inf")}))


@pytest.mark.parametrize("wrong", [10.0, "10", None])
def test_a_watermark_is_an_integer(wrong):
    with pytest.raises(TypeError, match="an integer of milliseconds"):
        Watermark(wrong)
    watermark = Watermark(np.int64(10))
    assert watermark == Watermark(10) and type(watermark.timestamp_ms) is int
