"""Deduplication, by hand and against references that never forget a row."""

from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.deduplicate_in_order import DeduplicateInOrder
from dagster_jet.operators.in_event_order import InEventOrder
from tests.unit.operators.stepping import Stepping, addressed, as_multiset, colliding

ROWS = pa.schema([("a", pa.string()), ("n", pa.int64()), ("b", pa.string())])


def operator(within=10):
    return Deduplicate(keys=("a", "b"), row_schema=ROWS, within_ms=within)


def row(time, n=0, a="x", b=None, hash_of=key_hash):
    return addressed(time, {"a": a, "b": b}, hash_of, n=n)


def numbers(results):
    return [result["n"] for result in results]


def test_the_first_row_of_a_key_stays_and_its_neighbours_go():
    run = Stepping(operator())
    assert numbers(run.step([row(0, 1), row(5, 2), row(10, 3), row(11, 4)])) == [1, 4]
    assert numbers(run.step([row(20, 5), row(22, 6), row(1, 7)])) == [6]
    assert run.late == 0


def test_only_kept_rows_push_others_out():
    assert numbers(Stepping(operator()).step([row(0, 1), row(8, 2), row(16, 3)])) == [1, 3]


def test_rows_are_compared_in_order_of_arrival_also_within_a_step():
    run = Stepping(operator())
    assert numbers(run.step([row(7, 1), row(5, 2), row(5, 3)])) == [1]


def test_an_older_row_near_a_kept_one_is_a_duplicate_too():
    run = Stepping(operator())
    run.step([row(100)])
    assert numbers(run.step([row(90, 1), row(89, 2)])) == [2]


def test_a_key_is_forgotten_once_no_row_can_be_near_it():
    run = Stepping(operator())
    run.step([row(0)], watermark=10)
    assert run.state.scan().num_rows == 1  # a row at 10 may still come
    run.step([], watermark=11)
    assert run.state.scan().num_rows == 0
    assert numbers(run.step([row(10, 1), row(11, 2)])) == [2]
    assert run.late == 1


def test_a_row_dead_on_arrival_is_emitted_but_not_saved():
    run = Stepping(operator())
    assert numbers(run.step([row(0, 1)], watermark=50)) == [1]
    assert run.deltas[-1].num_rows == 0


def test_null_is_a_key_and_colliding_hashes_are_not_one_key():
    run = Stepping(operator())
    assert key_hash("x", None) == key_hash(None, "x")
    assert numbers(run.step([row(0, 1, "x", None), row(0, 2, None, "x")])) == [1, 2]
    assert numbers(run.step([row(1, 3, "x", None), row(1, 4, None, "x")])) == []
    assert numbers(run.step([row(1, 5, None, None), row(1, 6, None, None)])) == [5]


def test_many_rows_of_one_key_far_apart_all_stay():
    run = Stepping(operator(within=0))
    assert len(run.step([row(t, t) for t in range(3000)])) == 3000


class Reference:
    """One row after the other; every kept row is remembered for ever."""

    def __init__(self, within):
        self.within, self.kept, self.watermark, self.late = within, {}, None, 0

    def step(self, rows, watermark):
        results = []
        for one in rows:
            if self.watermark is not None and one["__time"] < self.watermark:
                self.late += 1
                continue
            times = self.kept.setdefault((one["a"], one["b"]), [])
            if all(abs(one["__time"] - t) > self.within for t in times):
                times.append(one["__time"])
                results.append({name: one[name] for name in ROWS.names})
        self.watermark = watermark
        return results


names = st.sampled_from([None, "x", "y"])
events = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), names, names), max_size=12)


@given(
    steps=st.lists(st.tuples(events, st.integers(0, 15), st.booleans()), max_size=8),
    within=st.sampled_from([0, 1, 7, 30]),
    hash_of=st.sampled_from([key_hash, colliding]),
    seed=st.integers(0, 2**16),
)
def test_as_the_reference(steps, within, hash_of, seed):
    run, reference, random, watermark = (
        Stepping(operator(within)),
        Reference(within),
        Random(seed),
        0,
    )
    for batch, advance, restored in steps:
        rows = [row(t, n, a, b, hash_of) for t, n, a, b in batch]
        watermark += advance
        assert as_multiset(run.step(rows, watermark=watermark)) == as_multiset(
            reference.step(rows, watermark)
        )
        assert run.late == reference.late
        if restored:
            run.restore(random)
    run.complete()
    assert run.state.scan().num_rows == 0


def in_order(keep="first", within=10):
    return InEventOrder(DeduplicateInOrder(("a", "b"), ROWS, within, keep))


@pytest.mark.parametrize(("keep", "results"), [("first", [[1], [], [3], []]),
                                               ("last", [[], [2], [], [5]])])  # fmt: skip
def test_in_event_order_a_group_is_decided_under_the_watermark(keep, results):
    """Times 0, 8, 16, 26 arrive backwards; the group of the first ends once it is past 10."""
    run, found = Stepping(in_order(keep)), []
    rows = [row(26, 5), row(16, 3), row(8, 2), row(0, 1)]
    for arrived, watermark in ((rows, 1), ([], 11), ([], 17), ([], 27)):
        found.append(numbers(run.step(arrived, watermark=watermark)))
    assert found == results
    run.complete()
    assert run.state.scan().num_rows == 0


def naive_groups(rows, within, keep):
    """Sorted by time, then by arrival."""
    groups = {}
    for one in sorted(rows, key=lambda r: r["__time"]):
        mine = groups.setdefault((one["a"], one["b"]), [])
        if not mine or one["__time"] > mine[-1][0]["__time"] + within:
            mine.append([])
        mine[-1].append(one)
    place = 0 if keep == "first" else -1
    chosen = [group[place] for mine in groups.values() for group in mine]
    return [{name: one[name] for name in ROWS.names} for one in chosen]


@given(
    arrived=events,
    cuts=st.lists(st.integers(0, 12), max_size=5),
    advances=st.lists(st.integers(0, 80), min_size=6, max_size=6),
    within=st.sampled_from([0, 1, 7, 30]),
    keep=st.sampled_from(["first", "last", "arrival"]),
    hash_of=st.sampled_from([key_hash, colliding]),
    seed=st.integers(0, 2**16),
)
def test_however_rows_are_divided_into_steps(arrived, cuts, advances, within, keep, hash_of, seed):
    by_arrival = keep == "arrival"
    every = [row(t, n, a, b, hash_of) for t, n, a, b in arrived]
    run = Stepping(operator(within) if by_arrival else in_order(keep, within))
    random, found = Random(seed), []
    bounds = [0, *sorted(min(cut, len(every)) for cut in cuts), len(every)]
    for (begin, end), advance in zip(pairwise(bounds), advances, strict=False):
        earliest = min((r["__time"] for r in every[end:]), default=200)  # no later row is late
        watermark = max(run.watermark or 0, min(advance, earliest))
        found += run.step(every[begin:end], watermark=watermark)
        if random.random() < 0.5:
            run.restore(random)
    found += run.complete()
    assert run.late == 0
    expected = Reference(within).step(every, 0) if by_arrival else naive_groups(every, within, keep)
    assert as_multiset(found) == as_multiset(expected)
    assert run.state.scan().num_rows == 0
