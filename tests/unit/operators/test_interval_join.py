"""The interval join, by hand and against a join of everything with everything."""

from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.errors import PipelineError, UserFunctionError
from dagster_jet.operators import interval_join
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.rows import event_order
from tests.unit.operators.stepping import Stepping, addressed, as_multiset, colliding

KEYS = pa.schema([("k", pa.string()), ("k2", pa.string())])
LEFT = pa.schema([("l", pa.int64()), ("left_text", pa.string())])
RIGHT = pa.schema([("r", pa.int64())])


def operator(how="inner", within=5, condition=None):
    between = within if isinstance(within, tuple) else (-within, within)
    return IntervalJoin(KEYS, LEFT, RIGHT, between, how, condition, "met")


def have_an_even_sum(pairs):
    total = pc.add(pairs.column("l"), pairs.column("r"))
    return pc.equal(pc.bit_wise_and(total, 1), 0)


def left(time, n=0, k="x", k2="x", hash_of=key_hash):
    return addressed(time, {"k": k, "k2": k2}, hash_of, l=n, left_text=f"t{n}")


def right(time, n=0, k="x", k2="x", hash_of=key_hash):
    return addressed(time, {"k": k, "k2": k2}, hash_of, r=n)


def pairs(results):
    return sorted(((row["l"], row["r"]) for row in results), key=repr)


def test_rows_within_the_interval_meet_in_either_order():
    run = Stepping(operator())
    assert pairs(run.step([left(10, 1)], [])) == []
    assert pairs(run.step([], [right(5, 1), right(15, 2), right(16, 3), right(4, 4)])) == [
        (1, 1),
        (1, 2),
    ]
    assert pairs(run.step([left(11, 2)], [])) == [(2, 2), (2, 3)]


def test_both_sides_in_one_step_and_equal_rows_are_a_multiset():
    run = Stepping(operator())
    assert pairs(run.step([left(0, 1), left(0, 1)], [right(0, 1), right(0, 1)])) == [(1, 1)] * 4
    assert pairs(run.step([left(0, 1)], [])) == [(1, 1)] * 2


def test_a_row_alone_is_emitted_once_and_only_when_nothing_can_match_it():
    run = Stepping(operator("outer"))
    assert run.step([left(10, 1)], [right(30, 2)], watermark=15) == []
    assert pairs(run.step([], [], watermark=16)) == [(1, None)]
    assert pairs(run.step([], [], watermark=40)) == [(None, 2)]
    assert run.complete() == []


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("inner", []),
        ("left", [(1, None)]),
        ("right", [(None, 2)]),
        ("outer", [(1, None), (None, 2)]),
    ],
)
def test_which_side_is_kept(how, alone):
    run = Stepping(operator(how))
    run.step([left(10, 1)], [right(30, 2)])
    assert pairs(run.complete()) == alone
    assert run.state.scan().num_rows == 0


def test_a_row_that_matched_is_not_emitted_alone_whenever_it_matched():
    run = Stepping(operator("outer"))
    run.step([left(10, 1)], [])
    run.restore(Random(1))
    run.step([], [right(12, 1)])  # marks the left row
    assert run.deltas[-1].num_rows == 2
    run.step([], [right(13, 2)])  # marked already
    assert run.deltas[-1].num_rows == 1
    run.restore(Random(2))
    assert run.complete() == []


def test_a_row_that_matches_in_the_step_that_ends_it():
    run = Stepping(operator("outer"))
    run.step([left(10, 1)], [])
    assert pairs(run.step([], [right(12, 1)], watermark=100)) == [(1, 1)]
    assert run.deltas[-1].num_rows == 0
    assert run.complete() == []


def test_a_row_dead_on_arrival_is_emitted_alone_at_once():
    run = Stepping(operator("left"))
    assert pairs(run.step([left(10, 1)], [], watermark=100)) == [(1, None)]


def test_null_keys_match_nothing_but_belong_to_the_side_that_is_kept():
    run = Stepping(operator("left"))
    assert run.step([left(0, 1, None)], [right(0, 1, None)]) == []
    assert run.state.scan().num_rows == 1
    assert pairs(run.complete()) == [(1, None)]


def test_an_inner_join_saves_no_identities_and_no_rows_of_null_keys():
    run = Stepping(operator())
    run.step([left(0, 1), left(0, 1, None)], [right(0)])
    assert run.state.scan().num_rows == 2
    assert run.operator.state_schema.names == [
        *("__partition", "__hash", "__time", "__role"),
        *run.operator.result_schema.names,
    ]


class Looking:
    """A state that tells how many rows a step has looked at."""

    def __init__(self, state):
        self.state, self.rows = state, 0

    def find(self, *asked):
        found = self.state.find(*asked)
        self.rows = max(self.rows, found.num_rows)  # steps are run twice
        return found

    def __getattr__(self, name):
        return getattr(self.state, name)


def test_a_step_reads_the_rows_of_its_interval_not_all_of_its_keys():
    run = Stepping(operator("left"))
    run.step([left(time, time) for time in range(1_000)], [])
    looking: Any = Looking(run.state)
    run.state = looking
    assert pairs(run.step([], [right(500, 1)])) == [(n, 1) for n in range(495, 506)]
    assert looking.rows == 11
    alone = run.step([left(990, 1)], [right(700, 2)], watermark=800)
    assert pairs(alone) == sorted(
        [(n, 2) for n in range(695, 706)]
        + [(n, None) for n in range(795) if not (495 <= n <= 505 or 695 <= n <= 705)],
        key=repr,
    )


def test_late_rows_are_counted_on_both_sides():
    run = Stepping(operator("outer"))
    run.step([], [], watermark=10)
    assert run.step([left(9)], [right(9), right(8)]) == []
    assert run.late == 3
    assert run.complete() == []


def test_a_column_of_both_sides_is_refused():
    with pytest.raises(PipelineError, match="column l"):
        IntervalJoin(KEYS, LEFT, LEFT.remove(1), (-5, 5))


def test_an_unknown_kind_of_join_is_refused():
    with pytest.raises(PipelineError, match="'full'; expected one of"):
        operator("full")


class Reference:
    """Remembers every row on time for ever, and joins everything with everything."""

    def __init__(self, how, between, needs_even=False):
        self.how, self.between, self.watermark, self.late = how, between, None, 0
        self.needs_even = needs_even
        self.sides = ([], [])
        self.paired, self.alone, self.found = set(), set(), set()

    def step(self, lefts, rights, watermark):
        for side, rows in zip(self.sides, (lefts, rights), strict=True):
            for row in rows:
                if self.watermark is not None and row["__time"] < self.watermark:
                    self.late += 1
                else:
                    side.append(row)
        results = []
        matched = (set(), set())
        for i, one in enumerate(self.sides[0]):
            for j, other in enumerate(self.sides[1]):
                if self.match(one, other):
                    matched[0].add(i)
                    matched[1].add(j)
                    if (i, j) not in self.paired:
                        self.paired.add((i, j))
                        if self.how not in ("semi", "anti"):
                            results.append({**self.clean(one), **self.clean(other)})
                        if self.how == "semi" and i not in self.found:
                            self.found.add(i)
                            results.append(self.clean(one))
        lower, upper = self.between
        sides = ((("left", "outer", "anti"), upper), (("right", "outer"), -lower))
        for number, (kept, kept_ms) in enumerate(sides):
            for i, one in enumerate(self.sides[number]):
                closed = one["__time"] + kept_ms < watermark
                if self.how in kept and closed and i not in matched[number]:
                    if (number, i) not in self.alone:
                        self.alone.add((number, i))
                        results.append(self.clean(one))
        self.watermark = watermark
        return [dict.fromkeys(operator(self.how).result_schema.names) | row for row in results]

    def match(self, one, other):
        near = self.between[0] <= other["__time"] - one["__time"] <= self.between[1]
        fits = not self.needs_even or (one["l"] + other["r"]) % 2 == 0
        return near and fits and all(one[k] is not None and one[k] == other[k] for k in KEYS.names)

    def clean(self, row):
        return {name: value for name, value in row.items() if not name.startswith("__")}


events = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 1),
        st.sampled_from([None, "x", "y"]),
        st.sampled_from([None, "x"]),
    ),
    max_size=8,
)


@given(
    steps=st.lists(st.tuples(events, events, st.integers(0, 12), st.booleans()), max_size=7),
    how=st.sampled_from(["inner", "left", "right", "outer", "semi", "anti"]),
    between=st.sampled_from([(0, 0), (-3, 3), (-20, 20), (-2, 9), (0, 5), (4, 12), (-12, -4)]),
    condition=st.sampled_from([None, have_an_even_sum]),
    hash_of=st.sampled_from([key_hash, colliding]),
    seed=st.integers(0, 2**16),
    pairs_max=st.sampled_from([1, 3, 1 << 18]),
)
def test_as_the_reference(steps, how, between, condition, hash_of, seed, pairs_max):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(event_order, "PAIRS_MAX", pairs_max)
        as_the_reference(steps, how, between, condition, hash_of, seed)


def as_the_reference(steps, how, between, condition, hash_of, seed):
    run = Stepping(operator(how, between, condition))
    reference = Reference(how, between, condition is not None)
    random, watermark = Random(seed), 0
    for lefts, rights, advance, restored in steps:
        arrived = (
            [left(*e, hash_of=hash_of) for e in lefts],
            [right(*e, hash_of=hash_of) for e in rights],
        )
        watermark += advance
        assert as_multiset(run.step(*arrived, watermark=watermark)) == as_multiset(
            reference.step(*arrived, watermark)
        )
        assert run.late == reference.late
        if restored:
            run.restore(random)
    assert as_multiset(run.complete()) == as_multiset(reference.step([], [], 10**9))
    assert run.state.scan().num_rows == 0


def test_bounds_that_differ_keep_each_side_as_long_as_it_needs():
    run = Stepping(operator("left", (-2, 10)))
    run.step([left(20, 1)], [right(20, 1)], watermark=20)
    run.step([], [], watermark=23)
    assert [row["r"] for row in run.state.scan().to_pylist()] == [None], "the right one is gone"
    assert pairs(run.step([], [right(30, 2)], watermark=30)) == [(1, 2)]
    assert run.step([], [], watermark=33) == [] and run.state.scan().num_rows == 0


@pytest.mark.parametrize("returned", [None, pa.array([1]), pa.array([True, True])])
def test_a_condition_that_is_no_boolean_per_pair(returned):
    run = Stepping(operator(condition=lambda pairs: returned))
    with pytest.raises(UserFunctionError, match=r"stage 'met': .*boolean for each of 1 candidate"):
        run.step([left(0)], [right(0)])


def test_a_condition_that_raises_names_its_code():
    def fails(pairs):
        raise ValueError("no")

    with pytest.raises(UserFunctionError, match=r"test_interval_join.py:\d+ `raise ValueError"):
        Stepping(operator(condition=fails)).step([left(0)], [right(0)])


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer", "semi", "anti"])
def test_a_condition_gets_some_pairs_at_a_time(how, monkeypatch):
    """30 rows of one key on each side are 900 pairs."""
    given = []

    def few(pairs):
        given.append(pairs.num_rows)
        return pc.equal(pairs.column("l"), pairs.column("r"))

    rows = [left(0, n) for n in range(30)], [right(0, n) for n in range(1, 31)]
    results = []
    for most in (1 << 18, 100):
        monkeypatch.setattr(event_order, "PAIRS_MAX", most)
        given.clear()
        run = Stepping(operator(how, condition=few))
        results.append(as_multiset(run.step(*rows) + run.complete()))
        assert sum(given) == 2 * 900, "steps are taken twice"
        assert max(given) < 2 * most
    assert results[0] == results[1]


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_whether_there_is_a_partner_needs_no_pairs(how, monkeypatch):
    monkeypatch.setattr(interval_join, "expand", None)
    run = Stepping(operator(how))
    found = run.step([left(0, n) for n in range(9)], [right(3, n, "y") for n in range(9)])
    found += run.step([left(50, 9)], [right(1, 1)]) + run.complete()
    wanted = range(9) if how == "semi" else [9]
    assert sorted(row["l"] for row in found) == list(wanted)
