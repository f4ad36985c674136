"""The order of a processor's callbacks: snapshots between calls of complete, phase 2, restore."""

import pytest

from dagster_jet.dag import (
    DONE,
    IDLE,
    BoundedQueue,
    CallOutcome,
    Emitter,
    InboundEdge,
    Inbox,
    Phase1,
    Phase2,
    Processor,
    SnapshotBarrier,
    SnapshotEntry,
    TaskletState,
    Watermark,
)
from dagster_jet.dag.tasklet_state import LEGAL_MOVES
from tests.unit.dag.rig import Rig

B = SnapshotBarrier(0)


class Numbers(Processor):
    """A source of 0..count-1, on two edges if there are two; saves how far it is."""

    def __init__(self, count: int) -> None:
        self.count, self.next, self.story = count, 0, []

    def complete(self):
        while self.next < self.count:
            if not self.outbox.offer(self.next):
                return False
            self.next += 1
        return True

    def save_to_snapshot(self):
        self.story.append("save")
        return self.outbox.offer_to_snapshot("next", self.next)

    def snapshot_commit_prepare(self):
        self.story.append("prepare")
        return self.outbox.offer("prepared")

    def snapshot_commit_finish(self, *, success):
        self.story.append(f"finish {success}")
        return True

    def restore_from_snapshot(self, inbox):
        self.next = inbox.poll().value
        return True

    def finish_snapshot_restore(self):
        self.story.append("restored")
        return True


def test_a_snapshot_of_a_source_waits_for_the_half_emitted_item():
    """Two outputs; one has room for two items only: item 2 is half out when phase 1 comes."""
    rig = Rig(Numbers(4), shape=(), outputs=2)
    rig.outputs[1].room = 2
    rig.run()
    assert [s.items for s in rig.outputs] == [[0, 1, 2], [0, 1]]
    rig.snapshots.phase1 = Phase1(0)
    rig.run()
    assert rig.processor.story == [], "nothing is saved while item 2 is unfinished"
    rig.outputs[1].room = 10**6
    rig.run()
    assert rig.outputs[0].items == rig.outputs[1].items == [0, 1, 2, "prepared", B, 3]
    assert rig.saved == [3, B]
    assert rig.processor.story == ["save", "prepare"]
    assert rig.tasklet.state is TaskletState.AWAIT_PHASE_2, (
        "complete() returned True before phase 2"
    )
    rig.snapshots.phase2 = Phase2(0, success=False)
    assert rig.run() is CallOutcome.DONE
    assert rig.processor.story[-1] == "finish False"
    assert rig.out[-1] is DONE and rig.tasklet.has_committed(0)


def test_a_restored_source_goes_on_where_the_barrier_was():
    rig = Rig(Numbers(4), shape=(), restored=[SnapshotEntry("next", 3)])
    rig.run()
    assert rig.out == [3, DONE] and rig.processor.story == ["restored"]


def test_a_tasklet_that_is_through_counts_as_saved():
    rig = Rig(Numbers(1), shape=())
    assert rig.run() is CallOutcome.DONE
    assert rig.tasklet.has_saved(0) and rig.tasklet.has_committed(0)


class Stubborn(Processor):
    """Returns False from each callback the first time, and notes every call."""

    def __init__(self) -> None:
        self.story = []

    def _twice(self, name):
        self.story.append(name)
        return self.story.count(name) % 2 == 0

    def try_process(self):
        return self._twice("try")

    def try_process_watermark(self, watermark):
        return self._twice(f"wm{watermark.timestamp_ms}") and self.outbox.offer(watermark)

    def process(self, ordinal, inbox):
        inbox.drain()
        return self._twice("process")

    def complete_edge(self, ordinal):
        return self._twice(f"edge {ordinal}")

    def complete(self):
        return self._twice("complete")

    def save_to_snapshot(self):
        return self._twice("save")

    def snapshot_commit_prepare(self):
        return self._twice("prepare")

    def snapshot_commit_finish(self, *, success):
        return self._twice("finish")


def test_every_callback_is_repeated_until_it_returns_true():
    rig = Rig(Stubborn(), shape=(1,)).put(0, "item", Watermark(7), B, DONE)
    for _ in range(40):
        rig.tasklet.call()
    rig.snapshots.phase2 = Phase2(0, True)
    for _ in range(40):
        rig.tasklet.call()
    story = [call for call in rig.processor.story if call != "try"]
    expected = ["process", "wm7", "save", "prepare", "edge 0", "complete", "finish"]
    assert story == [call for call in expected for _ in range(2)]
    assert rig.out == [Watermark(7), B, DONE]


def test_phase_2_does_not_interrupt_try_process():
    rig = Rig(Stubborn(), shape=(1,)).put(0, B)
    while rig.tasklet.state is not TaskletState.EMIT_BARRIER:
        rig.tasklet.call()
    rig.tasklet.call()
    rig.tasklet.call()  # try_process returned False
    assert rig.tasklet.state is TaskletState.TRY_PROCESS
    rig.snapshots.phase2 = Phase2(0, True)
    rig.tasklet.call()
    rig.tasklet.call()
    assert rig.processor.story[-2:] == ["try", "finish"]


def test_the_processor_never_sees_idle_and_the_runtime_forwards_it():
    rig = Rig(shape=(1, 1)).put(0, 1, IDLE).put(1, Watermark(5), IDLE)
    rig.run()
    assert rig.out == [1, Watermark(5), IDLE]
    assert rig.processor.seen == [1]


def test_a_watermark_comes_before_the_events_behind_it_and_after_those_before_it():
    rig = Rig(shape=(1,)).put(0, 1, Watermark(1), 2, Watermark(2), 3)
    rig.run()
    assert rig.out == [1, Watermark(1), 2, Watermark(2), 3]


def test_a_coalescer_with_retention_lets_the_watermark_go_on():
    rig = Rig(shape=(2,), max_retention_ms=20).put(0, Watermark(100)).put(1, "event")
    rig.run()
    rig.now_ms = 19
    rig.run()
    assert rig.out == ["event"]
    rig.now_ms = 20
    rig.run()
    assert rig.out == ["event", Watermark(100)]


def test_a_queue_that_lags_is_passed_while_it_is_busy():
    ahead, behind = BoundedQueue(), BoundedQueue()
    edge = InboundEdge(0, [ahead, behind], exactly_once=True, max_retention_ms=20)
    ahead.offer(Watermark(100))
    looks = []
    for now_ms in range(40):
        behind.offer(now_ms)
        looks.append(edge.drain_to(Inbox(), 10, now_ms))
    assert [n for n, look in enumerate(looks) if look.in_band == Watermark(100)] == [20]
    assert all(look.events for look in looks)


class Doubling(Processor):
    """Vectorised: takes the whole inbox at once and emits slowly."""

    def init(self, outbox, context):
        super().init(outbox, context)
        self.emitter = Emitter(outbox.offer)

    def process(self, ordinal, inbox):
        return self.emitter.emit(lambda: [2 * item for item in inbox.drain()])

    def save_to_snapshot(self):
        assert not self.emitter.is_pending
        return True


def test_a_processor_that_drained_its_inbox_is_called_until_nothing_is_pending():
    rig = Rig(Doubling(), shape=(1,), room=1).put(0, 1, 2, 3, B)
    rig.run()
    assert rig.out == [2] and not rig.tasklet.has_saved(0)
    rig.outputs[0].room = 10
    rig.run()
    assert rig.out == [2, 4, 6, B]


def test_a_batch_ends_after_as_many_offers_as_the_outbox_allows_per_call():
    rig = Rig(Numbers(5000), shape=())
    rig.tasklet.call()
    rig.tasklet.call()
    assert len(rig.out) == 2048
    rig.run()
    assert rig.out == [*range(5000), DONE]


def test_close_is_called_once_whatever_happens():
    rig = Rig(shape=(1,))
    rig.run()
    rig.tasklet.close()
    rig.tasklet.close()
    assert rig.processor.calls == ["close"]
    assert rig.tasklet.call() is CallOutcome.DONE


def test_the_small_inbox_does_not_starve_the_second_queue():
    rig = Rig(shape=(2,), inbox_limit=1).put(0, 1, 2, 3).put(1, "a", "b", "c")
    rig.run()
    assert rig.out == [1, "a", 2, "b", 3, "c"]


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly", "at-least"])
@pytest.mark.parametrize("busy", [0, 1, 2])
def test_a_queue_that_moves_the_watermark_does_not_starve_the_others(busy, exactly_once):
    """A source that says a watermark behind each item, beside two whose rows come after a lull."""
    rig = Rig(shape=(3,), exactly_once=exactly_once)
    others = {0, 1, 2} - {busy}
    for queue in others:
        rig.put(queue, IDLE)
    rig.put(busy, 0, Watermark(0)).run()
    for queue in others:
        rig.put(queue, f"of {queue}")
    for at in range(1, 100):
        rig.put(busy, at, Watermark(at))
    for _ in range(10):
        rig.tasklet.call()
    assert {f"of {queue}" for queue in others} <= set(rig.out)


def test_every_state_is_in_the_table_and_can_be_reached():
    assert set(LEGAL_MOVES) == set(TaskletState)
    assert set().union(*LEGAL_MOVES.values()) == set(TaskletState) - {TaskletState.START}


def test_every_state_is_documented():
    import inspect

    from dagster_jet.dag import tasklet_state

    text = inspect.getsource(tasklet_state.TaskletState)
    for state in TaskletState:
        after = text.split(f"    {state.name} = ")[1].splitlines()
        assert after[1].strip().startswith('"""'), state


@pytest.mark.parametrize("count", [0, 1])
def test_a_finished_processor_of_a_snapshot_is_not_run_again(count):
    rig = Rig(Numbers(count), shape=())
    rig.tasklet._is_finished = True
    assert rig.run() is CallOutcome.DONE and rig.out == [DONE]
