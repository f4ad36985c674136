"""A processor that breaks its contract: the error names it, the callback and the cure."""

import pickle
import sys

import pytest

from dagster_jet.dag import (
    DONE,
    ItemProcessor,
    Partitioning,
    Phase2,
    Processor,
    SnapshotBarrier,
    SnapshotEntry,
    Watermark,
)
from dagster_jet.dag.saved_entry import SavedEntry
from dagster_jet.errors import ProcessorError, Reaction, StoreUnavailableError
from tests.unit.dag.rig import Echo, Rig

B = SnapshotBarrier(0)


def error_of(processor, *items, room=10**6, restored=None, shape=(1,), turns=1, outputs=1):
    rig = Rig(processor, shape=shape, room=room, restored=restored, outputs=outputs)
    if shape:
        rig.put(0, *items)
    with pytest.raises(ProcessorError) as caught:
        for _ in range(turns):
            rig.run()
            rig.snapshots.phase2 = Phase2(0, True)
        rig.run()
    error = caught.value
    assert (error.vertex, error.index) == ("echo", 0)
    assert "stage 'echo'" in str(error) and error.callback in str(error) and error.cure
    return error


RETURNING = [
    ("try_process", ()),
    ("try_process_watermark", (Watermark(1),)),
    ("process", ("item",)),
    ("complete_edge", (DONE,)),
    ("complete", (DONE,)),
    ("save_to_snapshot", (B,)),
    ("snapshot_commit_prepare", (B,)),
    ("snapshot_commit_finish", (B,)),
    ("finish_snapshot_restore", ()),
    ("restore_from_snapshot", ()),
]


@pytest.mark.parametrize("wrong", [None, 1, "yes"], ids=["nothing", "a number", "a text"])
@pytest.mark.parametrize("callback, items", RETURNING, ids=[name for name, _ in RETURNING])
def test_returning_anything_but_true_or_false(callback, items, wrong):
    processor = type("P", (Echo,), {callback: lambda self, *a, **k: wrong})()
    error = error_of(processor, *items, restored=[SnapshotEntry(1, 2)])
    assert error.callback == f"{callback}()"
    assert (
        "returned nothing" in str(error) if wrong is None else f"returned {wrong!r}" in str(error)
    )
    assert "is a return missing?" in error.cure


@pytest.mark.parametrize("callback, items", RETURNING, ids=[name for name, _ in RETURNING])
def test_raising_in_any_callback(callback, items):
    def fail(self, *args, **kwargs):
        raise KeyError("price")

    processor = type("P", (Echo,), {callback: fail})()
    error = error_of(processor, *items, restored=[SnapshotEntry(1, 2)])
    assert error.callback == f"{callback}()"
    assert "raised KeyError: 'price'" in str(error) and isinstance(error.__cause__, KeyError)
    assert error.reaction is Reaction.FAIL


def test_raising_in_init_and_in_close():
    class Fails(Echo):
        def init(self, outbox, context):
            raise OSError("no such host")

        def close(self):
            raise OSError("ignored")

    rig = Rig(Fails(), shape=(1,))
    with pytest.raises(ProcessorError, match=r"init\(\).*no such host"):
        rig.run()
    rig.tasklet.close()  # logged only


def test_the_reaction_is_that_of_the_error_behind_it():
    class Reads(Echo):
        def process_item(self, ordinal, item):
            raise StoreUnavailableError("two members do not answer")

    assert error_of(Reads(), 1).reaction is Reaction.RESTART


def test_an_item_processor_that_forgets_to_return():
    class Forgets(ItemProcessor):
        def process_item(self, ordinal, item):
            self.outbox.offer(item)

    assert "process_item() returned None" in str(error_of(Forgets(), 1))


def test_offering_after_a_refusal():
    class Greedy(Processor):
        def process(self, ordinal, inbox):
            for item in inbox:
                self.outbox.offer(item)
            inbox.drain()
            return True

    error = error_of(Greedy(), 1, 2, 3, room=1)
    assert "offered 3 after the outbox had refused an item" in str(error)


def test_ignoring_a_refusal():
    class Ignores(Processor):
        def process(self, ordinal, inbox):
            self.outbox.offer(inbox.poll())
            return True

    assert "which would be lost" in str(error_of(Ignores(), 1, 2, room=1))


@pytest.mark.parametrize("way", ["item", "ordinals"])
def test_offering_another_item_after_a_refusal(way):
    class Other(Processor):
        count = 0

        def process(self, ordinal, inbox):
            self.count += 1
            if way == "item":
                return self.outbox.offer(self.count)
            return self.outbox.offer("same", self.count % 2)

    error = error_of(Other(), "a", room=0, outputs=2)
    assert "was refused before and is still owed" in str(error)


def test_an_equal_item_is_the_same_item():
    class Computes(ItemProcessor):
        def process_item(self, ordinal, item):
            return self.outbox.offer((item, [item]))

    rig = Rig(Computes(), shape=(1,), room=0).put(0, 1)
    rig.run()
    rig.outputs[0].room = 1
    rig.run()
    assert rig.out == [(1, [1])]


@pytest.mark.parametrize("second", [10, 9])
def test_emitting_a_watermark_that_does_not_grow(second):
    class Backwards(Processor):
        def process(self, ordinal, inbox):
            inbox.drain()
            return self.outbox.offer(Watermark(10)) and self.outbox.offer(Watermark(second))

    assert f"emitted watermark {second} after 10" in str(error_of(Backwards(), 1))


def test_emitting_a_watermark_on_one_edge_only():
    class Partly(Processor):
        def process(self, ordinal, inbox):
            inbox.drain()
            return self.outbox.offer(Watermark(10), 0)

    assert "to some edges only" in str(error_of(Partly(), 1, outputs=2))


def test_an_upstream_watermark_that_does_not_grow():
    assert "watermark 9 is not greater than 10" in str(
        error_of(Echo(), Watermark(10), Watermark(9))
    )


@pytest.mark.parametrize("item", [None, DONE, B], ids=str)
def test_emitting_what_is_not_an_item(item):
    class Emits(Processor):
        def process(self, ordinal, inbox):
            inbox.drain()
            return self.outbox.offer(item)

    assert "offered" in str(error_of(Emits(), 1))


def test_an_ordinal_that_does_not_exist():
    class Emits(Processor):
        def process(self, ordinal, inbox):
            return self.outbox.offer(inbox.poll(), 1)

    assert "offered to ordinal 1, but there are 1 outbound edges" in str(error_of(Emits(), 1))


def test_saving_what_it_cannot_restore_is_found_when_it_saves():
    class Saves(Processor):
        def save_to_snapshot(self):
            return self.outbox.offer_to_snapshot("key", 1)

    error = error_of(Saves(), B)
    assert error.callback == "save_to_snapshot()"
    assert "does not implement restore_from_snapshot" in str(error)


def test_being_given_a_snapshot_that_it_cannot_restore():
    error = error_of(Processor(), restored=[SnapshotEntry("key", 1)])
    assert error.callback == "restore_from_snapshot()"
    assert "was given 1 saved entries" in str(error)


def test_saving_outside_a_snapshot():
    class Saves(Echo):
        def process(self, ordinal, inbox):
            return self.outbox.offer_to_snapshot("key", inbox.poll())

    assert "Save only in save_to_snapshot()" in str(error_of(Saves(), 1))


def test_emitting_in_phase_2():
    class Emits(Echo):
        def snapshot_commit_finish(self, *, success):
            return self.outbox.offer("committed")

    error = error_of(Emits(), B)
    assert "not allowed in snapshot_commit_finish()" in str(error)


def test_the_error_can_travel_between_processes():
    error = error_of(ItemProcessor(), 1)
    error.reaction = Reaction.RESTART
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) and copy.vertex == "echo"
    assert copy.reaction is Reaction.RESTART and copy.callback == "process()"


def test_an_item_that_a_snapshot_keeps_out_is_not_lost():
    """A blocked outbox owes nothing, but the item has not gone out either."""

    class Ignores(Echo):
        def complete(self):
            self.outbox.block()  # as the runtime does while a snapshot waits
            self.outbox.offer("item")
            return True

    assert "which would be lost" in str(error_of(Ignores(), shape=()))


class Unreadable(Exception):
    def __init__(self, code, text):
        super().__init__(code)


def test_state_that_cannot_be_read_back():
    saved = SavedEntry.of(SnapshotEntry("key", Unreadable(1, "x")), Partitioning(lambda k, n: 0, 1))
    error = error_of(Echo(), restored=(entry.load() for entry in [saved]))
    assert error.callback == "restore_from_snapshot()"
    assert "cannot be read back: TypeError" in str(error)


def test_leaving_the_interpreter():
    class Exits(Echo):
        def process(self, ordinal, inbox):
            sys.exit(3)

    error = error_of(Exits(), 1)
    assert error.callback == "process()" and "raised SystemExit: 3" in str(error)


def test_a_processor_that_does_not_know_whether_it_is_cooperative():
    class Unsure(Echo):
        @property
        def is_cooperative(self):
            raise KeyError("threads")

    with pytest.raises(ProcessorError, match="raised KeyError: 'threads'") as caught:
        Rig(Unsure())
    assert caught.value.callback == "is_cooperative()"
