"""Deduplication, by hand and against a reference that never forgets a row."""

from random import Random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.operators.deduplicate import Deduplicate
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


def test_within_a_step_time_decides_and_then_arrival():
    run = Stepping(operator())
    assert numbers(run.step([row(7, 1), row(5, 2), row(5, 3)])) == [2]


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
        for one in sorted(rows, key=lambda r: r["__time"]):
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
