"""Barriers, row by row (vectors.md, section 4), between queues of one edge and between edges."""

import pytest

from dagster_jet.dag import (
    DONE,
    CallOutcome,
    Inbox,
    ItemProcessor,
    Phase1,
    Phase2,
    SnapshotBarrier,
    SnapshotEntry,
    TaskletState,
    Watermark,
)
from dagster_jet.dag.inbound import BarrierError
from dagster_jet.errors import ProcessorError
from tests.unit.dag.rig import Rig

B = SnapshotBarrier(0)
ONE_EDGE, TWO_EDGES = (2,), (1, 1)
anywhere = pytest.mark.parametrize("shape", [ONE_EDGE, TWO_EDGES], ids=["queues", "edges"])
either = pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly", "at-least"])


@anywhere
def test_b1_an_input_that_has_had_its_barrier_is_held(shape):
    rig = Rig(shape=shape).put(0, 0, 1, 2, 3, B, 4, 5, 6, 7)
    rig.run()
    assert (rig.out, rig.saved) == ([0, 1, 2, 3], [])
    rig.put(1, B).run()
    assert rig.out == [0, 1, 2, 3, B, 4, 5, 6, 7]
    assert rig.saved == [0, 1, 2, 3, B]


@anywhere
def test_b2_the_other_input_is_read_on_until_its_barrier(shape):
    rig = Rig(shape=shape).put(0, B).put(1, 1)
    rig.run()
    assert rig.out == [1]
    assert rig.put(0, 2).run() is CallOutcome.NONE
    assert rig.out == [1]
    rig.put(1, B).run()
    assert rig.out == [1, B, 2]


@anywhere
def test_b3_at_least_once_lets_items_overtake_the_barrier(shape):
    rig = Rig(shape=shape, exactly_once=False).put(0, B).put(1, 1)
    rig.run()
    assert rig.out == [1]
    rig.put(0, 2).put(1, B).run()
    assert rig.out == [1, 2, B]
    assert rig.saved == [1, 2, B]


@anywhere
@either
def test_b4_a_done_input_no_longer_counts(shape, exactly_once):
    rig = Rig(shape=shape, exactly_once=exactly_once).put(0, 1, B).put(1, DONE)
    rig.run()
    assert rig.out == [1, B]


@anywhere
@either
def test_b5_the_barrier_goes_before_done(shape, exactly_once):
    rig = Rig(shape=shape, exactly_once=exactly_once).put(0, B, DONE).put(1, B, DONE)
    rig.run()
    assert rig.out == [B]
    rig.snapshots.phase2 = Phase2(0, True)
    assert rig.run() is CallOutcome.DONE
    assert rig.out == [B, DONE]
    assert rig.saved == [B, DONE]
    assert rig.processor.calls == [("finish", True), "close"]


@anywhere
@either
def test_done_behind_a_barrier_waits_for_the_barrier_to_go_on(shape, exactly_once):
    rig = Rig(shape=shape, exactly_once=exactly_once).put(0, B, DONE)
    rig.run()
    rig.put(1, B).run()
    assert rig.out[0] == B and rig.saved == [B]


@anywhere
@either
def test_b6_barrier_and_watermark_are_never_reordered(shape, exactly_once):
    rig = Rig(shape=shape, exactly_once=exactly_once).put(0, Watermark(1)).put(1, B)
    rig.run()
    assert rig.out == []
    rig.put(0, B).put(1, Watermark(1)).run()
    assert rig.out == [B, Watermark(1)]


class Pairs(ItemProcessor):
    """Remembers A until B comes, emits the pair and forgets both."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def process_item(self, ordinal, item):
        if {*self.waiting, item} == {"A", "B"}:
            if not self.outbox.offer("AB"):
                return False
            self.waiting.clear()
        else:
            self.waiting.add(item)
        return True

    def save_to_snapshot(self):
        return all(self.outbox.offer_to_snapshot(item, True) for item in sorted(self.waiting))

    def restore_from_snapshot(self, inbox: Inbox):
        self.waiting |= {entry.key for entry in inbox.drain()}
        return True


@anywhere
def test_b7_in_at_least_once_a_pair_may_wait_for_ever(shape):
    rig = Rig(Pairs(), shape=shape, exactly_once=False).put(0, "A", B, "B")
    rig.run()
    assert rig.out == ["AB"]
    rig.put(1, B).run()
    assert rig.snapshot.items == [B], "the saved state is empty"
    restarted = Rig(Pairs(), shape=shape, exactly_once=False, restored=[]).put(0, "B")
    restarted.run()
    assert restarted.out == [] and restarted.processor.waiting == {"B"}


@anywhere
def test_b7_in_exactly_once_the_pair_is_emitted_once(shape):
    rig = Rig(Pairs(), shape=shape).put(0, "A", B, "B")
    rig.run()
    assert rig.out == []
    rig.put(1, B).run()
    assert rig.snapshot.items == [SnapshotEntry("A", True), B]
    assert rig.out == [B, "AB"]
    restarted = Rig(Pairs(), shape=shape, restored=[SnapshotEntry("A", True)]).put(0, "B")
    restarted.run()
    assert restarted.out == ["AB"]


@anywhere
def test_b8_a_terminal_barrier_aligns_in_at_least_once_too(shape):
    terminal = SnapshotBarrier(0, terminal=True)
    rig = Rig(shape=shape, exactly_once=False).put(0, 1, terminal, 2)
    rig.run()
    assert (rig.out, rig.saved) == ([1], [])
    rig.put(1, terminal, 3).run()
    assert rig.out == [1, terminal] and rig.saved == [1, terminal]
    assert rig.tasklet.state is TaskletState.AWAIT_PHASE_2
    rig.snapshots.phase2 = Phase2(0, True)
    assert rig.run() is CallOutcome.DONE
    assert rig.out == [1, terminal, DONE], "nothing is processed behind it"


def test_a_watermark_released_by_the_end_of_an_input_precedes_the_barrier_behind_it():
    rig = Rig().put(0, Watermark(5), B).put(1, Watermark(3), DONE)
    rig.run()
    assert rig.out == [Watermark(3), Watermark(5), B]


def test_a_prioritised_edge_is_exhausted_before_the_others_are_read():
    rig = Rig(shape=(1, 1), priorities=(0, -1)).put(0, "row", B).put(1, "build side")
    rig.run()
    assert rig.out == ["build side"]
    rig.put(1, DONE).run()
    assert rig.out == ["build side", "row", B]


def test_a_barrier_on_a_prioritised_edge_is_a_defect_and_is_said_so():
    rig = Rig(shape=(1, 1), priorities=(0, -1)).put(1, B)
    with pytest.raises(BarrierError, match="postponed"):
        rig.run()


def test_a_barrier_of_another_snapshot_is_refused():
    rig = Rig(shape=(1,)).put(0, SnapshotBarrier(7))
    with pytest.raises(ProcessorError, match="expected the barrier of snapshot 0"):
        rig.run()


def test_two_different_barriers_are_refused():
    rig = Rig().put(0, B).put(1, SnapshotBarrier(1))
    with pytest.raises(BarrierError, match="expected"):
        rig.run()


def test_an_export_prepares_nothing_and_has_no_phase_2():
    rig = Rig(shape=(1,)).put(0, 1, B, DONE)
    rig.snapshots.phase1 = Phase1(0, export_only=True)
    assert rig.run() is CallOutcome.DONE
    assert rig.out == [1, B, DONE]
    assert rig.processor.calls == ["close"]
