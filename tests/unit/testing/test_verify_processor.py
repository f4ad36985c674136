"""`verify_processor` passes what is right and names what is wrong with the rest."""

import logging
from dataclasses import dataclass

import pyarrow as pa
import pytest

from dagster_jet.core.job_context import JobContext
from dagster_jet.dag import (
    DONE,
    IDLE,
    BroadcastKey,
    Emitter,
    Guarantee,
    Inbox,
    ItemProcessor,
    PartitionKey,
    Processor,
    Watermark,
    broadcast_key,
    snapshot_emitter,
)
from dagster_jet.errors import ProcessorError
from dagster_jet.testing import verify_processor
from tests.unit.dag.rig import Rig


class Totals(ItemProcessor):
    """Running total per key; saves (key, total); emits the totals at the end."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    def init(self, outbox, context):
        super().init(outbox, context)
        self.results = Emitter(outbox.offer)
        self.entries = snapshot_emitter(outbox.offer_to_snapshot)

    def process_item(self, ordinal, item):
        key, value = item
        self.totals[key] = self.totals.get(key, 0) + value
        return True

    def complete(self):
        return self.results.emit(lambda: sorted(self.totals.items()))

    def save_to_snapshot(self):
        return self.entries.emit(lambda: list(self.totals.items()))

    def restore_from_snapshot(self, inbox: Inbox):
        for key, value in inbox.drain():
            assert key not in self.totals
            self.totals[key] = value
        return True


class EmitsOnce(Totals):
    """Like the one above, but right: it emits nothing again after a restart."""

    def complete(self):
        while self.totals:
            key = min(self.totals)
            if not self.outbox.offer((key, self.totals[key])):
                return False
            del self.totals[key]
        return True


ITEMS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)]
TOTALS = [("a", 4), ("b", 7), ("c", 4)]


def by_key(item):
    return item[0]


def test_a_processor_that_keeps_the_contract_passes():
    verify_processor(EmitsOnce, input=ITEMS, expect=TOTALS)


def test_several_instances_with_restored_keys_redistributed():
    verify_processor(EmitsOnce, input=ITEMS, expect=TOTALS, key=by_key, parallelisms=(3, 2, 5, 1))


def test_results_emitted_again_after_a_restart_are_found():
    with pytest.raises(AssertionError, match=r"mode: restore after(.|\n)*extra    \[\('a', 4\)"):
        verify_processor(Totals, input=ITEMS, expect=TOTALS)


class Forgets(EmitsOnce):
    def restore_from_snapshot(self, inbox):
        inbox.drain()
        return True


def test_state_that_is_not_restored_is_found():
    with pytest.raises(AssertionError, match="mode: restore after every snapshot"):
        verify_processor(Forgets, input=ITEMS, expect=TOTALS)


class SavesUnderTheWrongKey(EmitsOnce):
    """Saves everything under one key: with one instance nobody notices."""

    def save_to_snapshot(self):
        return self.entries.emit(lambda: [("all", dict(self.totals))])

    def restore_from_snapshot(self, inbox):
        for _, totals in inbox.drain():
            for key, value in totals.items():
                self.totals[key] = self.totals.get(key, 0) + value
        return True


def test_state_that_goes_to_the_wrong_instance_is_found():
    verify_processor(SavesUnderTheWrongKey, input=ITEMS, expect=TOTALS)
    with pytest.raises(AssertionError, match="instances"):
        verify_processor(SavesUnderTheWrongKey, input=ITEMS, expect=TOTALS, key=by_key)


def test_wrong_output_shows_what_is_missing_and_what_is_too_much():
    with pytest.raises(AssertionError) as caught:
        verify_processor(EmitsOnce, input=ITEMS, expect=[("a", 4), ("b", 8), ("c", 4)])
    assert "missing  [('b', 8)]" in str(caught.value)
    assert "extra    [('b', 7)]" in str(caught.value)


def test_order_counts_unless_it_is_said_not_to():
    shuffled = TOTALS[::-1]
    with pytest.raises(AssertionError, match="the order differs"):
        verify_processor(EmitsOnce, input=ITEMS, expect=shuffled)
    verify_processor(EmitsOnce, input=ITEMS, expect=shuffled, ordered=False)


def test_watermarks_go_to_their_callback_and_idle_passes_by():
    seen = []

    class Records(ItemProcessor):
        def process_item(self, ordinal, item):
            seen.append(item)
            return self.outbox.offer(item)

        def try_process_watermark(self, watermark):
            return self.outbox.offer(watermark)

    verify_processor(
        Records,
        input=[1, Watermark(5), IDLE, 2],
        expect=[1, Watermark(5), IDLE, 2],
        snapshots=False,
    )
    assert set(seen) == {1, 2}


def test_watermarks_of_several_edges_are_coalesced():
    class Echo(ItemProcessor):
        def process_item(self, ordinal, item):
            return self.outbox.offer((ordinal, item))

    verify_processor(
        Echo,
        inputs=[["a", Watermark(10), "b"], ["x", Watermark(7), "y", Watermark(12)]],
        expect=[
            (0, "a"),
            (1, "x"),
            Watermark(7),
            (0, "b"),
            (1, "y"),
            Watermark(12),
        ],
        ordered=False,
    )


W5, W10 = Watermark(5), Watermark(10)


@pytest.mark.parametrize(
    "turns, expect, ordered",
    [
        (
            [(0, [1]), (1, [IDLE]), (0, [2, W10]), (0, [DONE]), (1, [5, 6, DONE])],
            [1, 2, W10, IDLE, "end of 0", 5, 6, "end of 1"],
            False,
        ),
        (
            [(0, [1, W10, DONE]), (1, [W5]), (1, [IDLE]), (1, [2, DONE])],
            [1, "end of 0", W5, W10, IDLE, 2, "end of 1"],
            True,
        ),
        ([(0, [W5]), (1, [1, DONE]), (0, [2, DONE])], [1, W5, "end of 1", 2, "end of 0"], True),
    ],
    ids=["idle behind the end", "idle behind the last watermark", "a watermark by the end"],
)
def test_what_is_coalesced_when_an_edge_ends_is_what_a_job_coalesces(turns, expect, ordered):
    rig, inputs = Rig(TellsEndsOnce(), shape=(1, 1)), [[], []]
    for ordinal, items in turns:
        rig.put(ordinal, *items).run()
        inputs[ordinal] += [item for item in items if item is not DONE]
    assert rig.out == [*expect, DONE]
    verify_processor(TellsEndsOnce, inputs=inputs, expect=expect, ordered=ordered)


class TellsEnds(ItemProcessor):
    """Emits that an edge has ended, and forgets that over a restart."""

    def __init__(self) -> None:
        self.told: set[int] = set()

    def process_item(self, ordinal, item):
        return self.outbox.offer(item)

    def complete_edge(self, ordinal):
        if ordinal not in self.told and not self.outbox.offer(f"end of {ordinal}"):
            return False
        self.told.add(ordinal)
        return True


class TellsEndsOnce(TellsEnds):
    def init(self, outbox, context):
        super().init(outbox, context)
        self.entries = snapshot_emitter(outbox.offer_to_snapshot)

    def save_to_snapshot(self):
        return self.entries.emit(lambda: [(broadcast_key(o), True) for o in self.told])

    def restore_from_snapshot(self, inbox):
        self.told.update(entry.key.key for entry in inbox.drain())
        return True


def test_edges_end_again_after_a_restart():
    """Edges that had ended at the snapshot end again: in a job their sources are not run again."""
    inputs, expect = [[1], [2, 3, 4]], [1, 2, 3, 4, "end of 0", "end of 1"]
    verify_processor(TellsEndsOnce, inputs=inputs, expect=expect, ordered=False)
    with pytest.raises(AssertionError, match=r"mode: restore after(.|\n)*extra    \['end of 0'"):
        verify_processor(TellsEnds, inputs=inputs, expect=expect, ordered=False)


class Timer(Processor):
    """Works without input, from try_process, and with what its neighbours saved."""

    def __init__(self) -> None:
        self.ticks, self.calls = 0, []

    def try_process(self):
        self.ticks += 1
        return True

    def process(self, ordinal, inbox):
        inbox.drain()
        return True

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot(broadcast_key("ticks"), self.ticks)

    def snapshot_commit_prepare(self):
        self.calls.append("prepare")
        return True

    def snapshot_commit_finish(self, *, success):
        self.calls.append(success)
        return True

    def restore_from_snapshot(self, inbox):
        for entry in inbox.drain():
            assert entry.key == BroadcastKey("ticks")
            self.ticks = max(self.ticks, entry.value)
        return True


def test_try_process_prepares_and_both_outcomes_of_phase_2_are_called():
    made = []

    def supplier():
        made.append(Timer())
        return made[-1]

    verify_processor(supplier, input=[1, 2, 3], expect=[], key=lambda item: item)
    assert any("prepare" in p.calls and False in p.calls and True in p.calls for p in made)
    assert any(p.calls == ["prepare"] for p in made), "a crash between the decision and phase 2"
    assert max(p.ticks for p in made) >= 3


class Source(Processor):
    def __init__(self, count=3, ends=True):
        self.count, self.next, self.ends = count, 0, ends

    def complete(self):
        while self.next < self.count:
            if not self.outbox.offer(self.next):
                return False
            self.next += 1
        return self.ends

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot("next", self.next)

    def restore_from_snapshot(self, inbox):
        self.next = inbox.poll().value
        return True


def test_a_source_is_cut_between_calls_of_complete():
    verify_processor(Source, expect=[0, 1, 2])


def test_an_endless_source_is_run_until_its_output_is_there():
    verify_processor(lambda: Source(ends=False), expect=[0, 1, 2], ends=False)
    with pytest.raises(AssertionError, match="extra"):
        verify_processor(lambda: Source(4, ends=False), expect=[0, 1, 2], ends=False)


class Wrong(ItemProcessor):
    """Breaks the contract in the way it is told to."""

    way = ""

    def process_item(self, ordinal, item):
        if self.way == "returns nothing":
            return None
        if self.way == "another item":
            self.count = getattr(self, "count", 0) + 1
            return self.outbox.offer(item) and self.outbox.offer(self.count)
        if self.way == "offers on":
            self.outbox.offer(item)
            self.outbox.offer(item)
        if self.way == "smaller watermark":
            return self.outbox.offer(Watermark(-item))
        if self.way == "raises":
            raise ValueError("bad price")
        if self.way == "stands still":
            return False
        return self.outbox.offer(item)

    def save_to_snapshot(self):
        if self.way == "saves a function":
            return self.outbox.offer_to_snapshot("f", lambda: None)
        if self.way == "saves under a list":
            return self.outbox.offer_to_snapshot([1], 1)
        return True

    def restore_from_snapshot(self, inbox):
        inbox.drain()
        return True


@pytest.mark.parametrize(
    "way, message",
    [
        ("returns nothing", "process_item() returned None"),
        ("another item", "was refused before and is still owed"),
        ("offers on", "after the outbox had refused an item"),
        ("smaller watermark", "emitted watermark -2 after -1"),
        ("raises", "raised ValueError: bad price"),
        ("stands still", "made no progress"),
        ("saves a function", "cannot be serialised"),
        ("saves under a list", "has no partition"),
    ],
)
def test_a_broken_contract_is_named(way, message):
    processor = type("Wrong", (Wrong,), {"way": way})
    with pytest.raises((ProcessorError, AssertionError)) as caught:
        verify_processor(processor, input=[1, 2, 3], expect=None)
    text = str(caught.value)
    assert message in text and "'Wrong'" in text and "mode: " in text
    assert "process()" in text or "save_to_snapshot()" in text


def test_saving_what_it_cannot_restore():
    class Saves(Processor):
        def save_to_snapshot(self):
            return self.outbox.offer_to_snapshot("key", 1)

    with pytest.raises(ProcessorError, match="could not take back"):
        verify_processor(Saves)


class Unreadable(Exception):
    def __init__(self, code, text):
        super().__init__(code)


def test_saving_what_cannot_be_read_back():
    class Saves(Processor):
        def save_to_snapshot(self):
            return self.outbox.offer_to_snapshot("key", Unreadable(1, "x"))

        def restore_from_snapshot(self, inbox):
            inbox.drain()
            return True

    with pytest.raises(ProcessorError, match="cannot be read back: TypeError") as caught:
        verify_processor(Saves, state_format="pickle")
    assert caught.value.callback == "save_to_snapshot()"


@dataclass
class Total:
    value: int = 0


class SavesTotals(ItemProcessor):
    """Keeps a total per key, as an object of its own class."""

    def init(self, outbox, context):
        super().init(outbox, context)
        self.totals: dict[str, Total] = {}
        self.entries = snapshot_emitter(outbox.offer_to_snapshot)

    def process_item(self, ordinal, item):
        key, value = item
        total = self.totals.get(key, Total()).value + value
        if not self.outbox.offer((key, total)):
            return False
        self.totals[key] = Total(total)
        return True

    def save_to_snapshot(self):
        return self.entries.emit(lambda: list(self.totals.items()))

    def restore_from_snapshot(self, inbox):
        self.totals.update((entry.key, entry.value) for entry in inbox.drain())
        return True


def test_state_is_saved_in_the_format_of_a_job_on_spark():
    sums = {"input": [("a", 1), ("b", 2), ("a", 3)], "expect": [("a", 1), ("b", 2), ("a", 4)]}
    with pytest.raises(ProcessorError, match=r"'a' that cannot be serialised: .*Total.*pickle"):
        verify_processor(SavesTotals, **sums)
    verify_processor(SavesTotals, **sums, state_format="pickle")
    with pytest.raises(ValueError, match="json"):
        verify_processor(SavesTotals, **sums, state_format="json")


def test_a_prepare_that_is_not_re_entrant_is_found():
    """The classic defect: the second call sees nothing to prepare and says it is done."""

    class Prepares(Processor):
        transaction: str | None = "t1"

        def snapshot_commit_prepare(self):
            transaction, self.transaction = self.transaction, None
            if transaction is None:
                return True
            self.outbox.offer_to_snapshot("a", transaction)
            return self.outbox.offer_to_snapshot("b", transaction)

        def restore_from_snapshot(self, inbox):
            inbox.drain()
            return True

    with pytest.raises(ProcessorError, match="which would be lost"):
        verify_processor(Prepares)


class DoublesBatches(Processor):
    """Vectorised: whole record batches in and out."""

    def init(self, outbox, context):
        super().init(outbox, context)
        self.emitter = Emitter(outbox.offer)

    def process(self, ordinal, inbox):
        return self.emitter.emit(
            lambda: [pa.table(batch).append_column("w", batch["v"]) for batch in inbox.drain()]
        )


def test_batches_are_compared_row_by_row():
    batches = [pa.record_batch({"v": [1, 2]}), pa.record_batch({"v": [3]})]
    rows = [{"v": v, "w": v} for v in (1, 2, 3)]
    verify_processor(DoublesBatches, input=batches, expect=rows, unpack=pa.Table.to_pylist)


def split_batches(batch, partition_count):
    """Splits by the value, as a partitioned edge would."""
    partitions = [value % partition_count for value in batch["v"].to_pylist()]
    for partition in sorted(set(partitions)):
        yield partition, batch.filter(pa.array([p == partition for p in partitions]))


class SumsBatches(Processor):
    """Keeps whole batches as its state, one entry per partition."""

    def __init__(self) -> None:
        self.runs: dict[int, list] = {}

    def init(self, outbox, context):
        super().init(outbox, context)
        self.entries = snapshot_emitter(outbox.offer_to_snapshot)
        self.results = Emitter(outbox.offer)

    def process(self, ordinal, inbox):
        for batch in inbox.drain():
            for partition, part in split_batches(batch, 271):
                self.runs.setdefault(partition, []).append(part)
        return True

    def complete(self):
        while self.runs:
            partition = min(self.runs)
            table = pa.Table.from_batches(self.runs[partition])
            if not self.outbox.offer(table):
                return False
            del self.runs[partition]
        return True

    def save_to_snapshot(self):
        return self.entries.emit(
            lambda: [(PartitionKey(p), pa.Table.from_batches(r)) for p, r in self.runs.items()]
        )

    def restore_from_snapshot(self, inbox):
        for key, table in inbox.drain():
            self.runs.setdefault(key.partition, []).extend(table.to_batches())
        return True


def test_batches_as_state_move_with_their_partitions():
    batches = [pa.record_batch({"v": [1, 2, 272]}), pa.record_batch({"v": [3, 1]})]
    verify_processor(
        SumsBatches,
        input=batches,
        expect=[{"v": v} for v in (1, 272, 1, 2, 3)],
        unpack=pa.Table.to_pylist,
        split=split_batches,
        state_format="pickle",
    )


class Clock:
    """Every look at it takes `step` seconds."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Blocks(DoublesBatches):
    is_cooperative = False


def test_slow_cooperative_calls_are_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        verify_processor(EmitsOnce, input=ITEMS, expect=TOTALS, clock=Clock(0.1))
    assert "EmitsOnce.process() took 100.0 ms" in caplog.text
    assert "set is_cooperative to False" in caplog.text


def test_calls_over_the_limit_are_an_error():
    with pytest.raises(AssertionError, match="took 6000"):
        verify_processor(EmitsOnce, input=ITEMS, expect=TOTALS, clock=Clock(6))


def test_processors_with_a_thread_of_their_own_may_take_their_time(caplog):
    with caplog.at_level(logging.WARNING):
        verify_processor(Blocks, input=[], clock=Clock(6))
    assert caplog.text == ""


def test_two_outbound_edges():
    class Splits(ItemProcessor):
        def process_item(self, ordinal, item):
            return self.outbox.offer(item, item % 2)

    verify_processor(Splits, input=[1, 2, 3, 4], expect_each=[[2, 4], [1, 3]])


@pytest.mark.parametrize(
    "supplier, message",
    [
        (lambda: None, "returned None, which is not a Processor"),
        (lambda: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_suppliers_that_supply_nothing(supplier, message):
    with pytest.raises(ProcessorError, match=message) as caught:
        verify_processor(supplier)
    assert caught.value.callback == "supplier()" and "mode: " in str(caught.value)


def test_an_instance_that_lives_on_after_a_restart():
    """Such an instance would pass without saving anything."""
    shared = Processor()
    with pytest.raises(ProcessorError, match=r"had been returned before.*mode: restore after"):
        verify_processor(lambda: shared)


def test_the_questions_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="not both"):
        verify_processor(Source, expect=[], expect_each=[[]])
    with pytest.raises(ValueError, match="to know when to stop"):
        verify_processor(Source, ends=False)


# --- at-least-once ------------------------------------------------------------------------------


class Pairs(ItemProcessor):
    """Emits (n, "pair") once both sides of n are there, and forgets them (seed 001)."""

    def __init__(self) -> None:
        self.waiting: dict[int, set[str]] = {}

    def init(self, outbox, context):
        super().init(outbox, context)
        self.entries = snapshot_emitter(outbox.offer_to_snapshot)

    def process_item(self, ordinal, item):
        number, side = item
        there = self.waiting.get(number, set()) | {side}
        if there == {"A", "B"}:
            if not self.outbox.offer((number, "pair")):
                return False
            self.forget(number)
        else:
            self.waiting[number] = there
        return True

    def forget(self, number):
        del self.waiting[number]

    def save_to_snapshot(self):
        return self.entries.emit(lambda: list(self.waiting.items()))

    def restore_from_snapshot(self, inbox):
        self.waiting.update(inbox.drain())
        return True


class PatientPairs(Pairs):
    """Remembers what it has paired, so that a side that comes again is paired again."""

    def forget(self, number):
        self.waiting[number] = {"A", "B"}


SIDES = [(1, "A"), (2, "B"), (2, "A"), (1, "B"), (3, "A"), (3, "B")]


def test_the_apparent_loss_of_at_least_once_is_found():
    expect = [(2, "pair"), (1, "pair"), (3, "pair")]
    for given in ({"input": SIDES}, {"inputs": [SIDES[::2], SIDES[1::2]], "ordered": False}):
        verify_processor(Pairs, expect=expect, key=by_key, **given)
        with pytest.raises(AssertionError, match=r"overtake(.|\n)*missing  \[\(\d, 'pair'\)"):
            verify_processor(Pairs, expect=expect, guarantee=Guarantee.AT_LEAST_ONCE, **given)
        verify_processor(
            PatientPairs, expect=expect, key=by_key, guarantee="at-least-once", **given
        )


class OnTime(ItemProcessor):
    """Drops what is older than the watermark (seed 001)."""

    watermark = None

    def process_item(self, ordinal, item):
        is_late = self.watermark is not None and item < self.watermark
        return is_late or self.outbox.offer(item)

    def try_process_watermark(self, watermark):
        if not self.outbox.offer(watermark):
            return False
        self.watermark = watermark.timestamp_ms
        return True

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot(broadcast_key("watermark"), self.watermark)

    def restore_from_snapshot(self, inbox):
        found = [entry.value for entry in inbox.drain()]
        self.watermark = None if None in found else min(found)
        return True


class OnlyForwards(OnTime):
    """Believes that a watermark never goes back."""

    def process_item(self, ordinal, item):
        return self.outbox.offer(item)

    def try_process_watermark(self, watermark):
        assert self.watermark is None or watermark.timestamp_ms > self.watermark
        return super().try_process_watermark(watermark)


class BeginsAnew(OnTime):
    """Waits for the watermark of its own execution."""

    def restore_from_snapshot(self, inbox):
        inbox.drain()
        return True


def test_a_watermark_that_goes_back_in_at_least_once_is_found():
    items = [Watermark(10), 12, Watermark(15), Watermark(20), 25, Watermark(30)]
    others = [Watermark(10), Watermark(20), Watermark(30)]
    for given in ({"input": items}, {"inputs": [items, others]}):
        for processor in (OnTime, OnlyForwards, BeginsAnew):
            verify_processor(processor, expect=items, **given)
        given |= {"expect": items, "guarantee": Guarantee.AT_LEAST_ONCE}
        with pytest.raises(AssertionError, match=r"overtakes(.|\n)*missing  \[\d\d"):
            verify_processor(OnTime, **given)
        with pytest.raises(ProcessorError, match=r"try_process_watermark\(\)(.|\n)*overtakes"):
            verify_processor(OnlyForwards, **given)
        verify_processor(BeginsAnew, **given)


def test_what_is_replayed_may_be_counted_twice():
    counted = [("a", 1), ("b", 2), ("a", 4), ("c", 4), ("b", 7)]

    class Running(Totals):
        def process_item(self, ordinal, item):
            key, value = item
            total = self.totals.get(key, 0) + value
            if not self.outbox.offer((key, total)):
                return False
            self.totals[key] = total
            return True

        def complete(self):
            return True

    verify_processor(Running, input=ITEMS, expect=counted)
    with pytest.raises(AssertionError, match="overtakes"):
        verify_processor(Running, input=ITEMS, expect=counted, guarantee="at-least-once")
    keys = [key for key, _ in counted]
    verify_processor(
        Running, input=ITEMS, expect=keys, unpack=lambda i: [i[0]], guarantee="at-least-once"
    )


class Above(ItemProcessor):
    def process_item(self, ordinal, item):
        if item > self.context.parameters["limit"]:
            if not self.outbox.offer(item):
                return False
            self.context.metrics.counter("above").add()
        return True


def test_parameters_and_counters_are_those_of_the_context() -> None:
    with JobContext(parameters={"limit": 2}).entered() as context:
        verify_processor(Above, input=[1, 2, 3, 4], expect=[3, 4])
    assert context.metrics.counted["above"] >= 2
    with pytest.raises(ProcessorError, match=r"'limit' is not a parameter of the job"):
        verify_processor(Above, input=[1])
