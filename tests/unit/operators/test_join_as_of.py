"""The join with versions, by hand and against a search of all versions for each row."""

from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.operators.in_event_order import ROW_COLUMN
from dagster_jet.operators.join_as_of import JoinAsOf
from dagster_jet.operators.operator import MemoryState, StepInput
from dagster_jet.operators.rows import event_order
from dagster_jet.operators.saved_rows import living_rows
from tests.unit.operators.stepping import (
    Stepping,
    addressed,
    as_input,
    as_multiset,
    colliding,
)

KEYS = pa.schema([("k", pa.string())])
LEFT = pa.schema([("n", pa.int64())])
RIGHT = pa.schema([("v", pa.int64())])


def operator(keeps_all=True, keep=None):
    return JoinAsOf.of("s", KEYS, LEFT, RIGHT, keeps_all=keeps_all, keep_ms=keep)


def row(time, n=0, k="x", hash_of=key_hash):
    return addressed(time, {"k": k}, hash_of, n=n)


def version(time, v, k="x", hash_of=key_hash):
    return addressed(time, {"k": k}, hash_of, v=v)


def pairs(results):
    return sorted(((r["n"], r["v"]) for r in results), key=repr)


def test_a_row_gets_the_newest_version_of_its_time_or_before():
    run = Stepping(operator())
    assert run.step([row(5, 5), row(9, 9)], [version(9, 90), version(2, 20)]) == []
    assert pairs(run.step([row(1, 1)], [], watermark=10)) == [(1, None), (5, 20), (9, 90)]
    assert pairs(run.step([row(30, 30)], [version(20, 200)], watermark=40)) == [(30, 200)]


def test_a_version_that_comes_later_counts_for_rows_that_wait():
    run = Stepping(operator())
    run.step([row(5, 5)], [], watermark=2)
    run.step([], [version(4, 40)])
    assert pairs(run.step([], [], watermark=6)) == [(5, 40)]


def test_of_two_versions_of_one_time_the_later_counts():
    run = Stepping(operator())
    run.step([], [version(5, 1), version(5, 2)])
    run.step([row(5, 5)], [version(5, 3)])
    run.restore(Random(1))
    assert pairs(run.step([row(5, 6)], [], watermark=6)) == [(5, 3), (6, 3)]


def test_inner_drops_rows_without_a_version_and_null_keys_have_none():
    for keeps_all, found in ((True, [(1, None), (2, None), (3, 7)]), (False, [(3, 7)])):
        run = Stepping(operator(keeps_all))
        run.step([row(1, 1), row(9, 2, None), row(9, 3)], [version(5, 7), version(5, 8, None)])
        assert pairs(run.complete()) == found


def test_a_version_counts_so_long_and_leaves_the_state():
    run = Stepping(operator(keep=10))
    run.step([row(15, 1), row(16, 2)], [version(5, 7)])
    run.step([], [], watermark=15)
    assert run.state.scan().num_rows == 3
    assert pairs(run.step([], [], watermark=17)) == [(1, 7), (2, None)]
    assert run.state.scan().num_rows == 0


def test_only_the_newest_version_of_a_key_stays():
    run = Stepping(operator())
    run.step([row(t) for t in range(50)], [version(t, t, k) for t in range(50) for k in "xyz"])
    run.step([], [], watermark=40)
    plan = {"keys": ["k"], "kind": "join_as_of"}
    living = living_rows(run.state.scan(), plan, 39).to_pylist()
    kept = {r["k"]: r["v"] for r in living if r[ROW_COLUMN] is None}
    assert kept == {"x": 39, "y": 39, "z": 39}
    assert sum(r[ROW_COLUMN] is not None for r in living) == 40


def test_rows_and_versions_behind_the_watermark_are_late():
    run = Stepping(operator())
    run.step([], [], watermark=10)
    assert run.step([row(9)], [version(9, 1), version(8, 2)]) == []
    assert run.late == 3
    assert run.complete() == []


def naive(rows, versions, keeps_all, keep):
    for one in rows:
        known = [
            (other["__time"], place, other["v"])
            for place, other in enumerate(versions)
            if other["k"] == one["k"] is not None
            and other["__time"] <= one["__time"]
            and (keep is None or one["__time"] - max_time(versions, one) <= keep)
        ]
        found = max(known)[2] if known else None
        if known or keeps_all:
            yield {"k": one["k"], "n": one["n"], "v": found}


def max_time(versions, one):
    times = [v["__time"] for v in versions if v["k"] == one["k"] and v["__time"] <= one["__time"]]
    return max(times)


def played(joins, random, *sides):
    """Gives both sides to an operator, a little out of order and in steps of any size.

    Returns:
        The results, the sides in the order in which they arrived, and the number of late rows.
    """
    run, found = Stepping(joins), []
    waiting = [sorted(side, key=lambda r: r["__time"] + random.randrange(8)) for side in sides]
    arrived = [[*side] for side in waiting]
    while any(waiting):
        given_now = [[side.pop(0) for _ in range(min(len(side), random.randrange(9)))]
                     for side in waiting]  # fmt: skip
        ahead = min((r["__time"] for side in waiting for r in side), default=40)
        mark = max(run.watermark or 0, random.randrange(ahead + 1))
        found += run.step(*given_now, watermark=mark)
        if random.random() < 0.3:
            run.restore(random)
    return found + run.complete(), arrived, run.late


@given(st.integers(), st.booleans(), st.sampled_from([None, 4, 15]), st.booleans())
def test_against_a_search_whatever_the_steps(seed, keeps_all, keep, collide):
    random = Random(seed)
    hash_of = colliding if collide else key_hash
    keys = ("x", "y", None)
    rows = [row(random.randrange(40), n, random.choice(keys), hash_of) for n in range(15)]
    versions = [version(random.randrange(40), n, random.choice(keys), hash_of) for n in range(10)]
    found, (rows, versions), late = played(operator(keeps_all, keep), random, rows, versions)
    assert late == 0
    assert as_multiset(found) == as_multiset([*naive(rows, versions, keeps_all, keep)])


SUBJECTS = pa.schema([("rule", pa.string()), ("v", pa.int64())])


def naive_of_subjects(rows, versions, keeps_all, keep):
    """Each row with the newest version of each rule of its key, if that is odd or the row is."""
    for one in rows:
        newest = {}
        for place, other in enumerate(versions):
            if other["k"] == one["k"] is not None and other["__time"] <= one["__time"]:
                this = (other["__time"], place, other["v"])
                newest[other["rule"]] = max(this, newest.get(other["rule"], this))
        found = [
            {"k": one["k"], "n": one["n"], "rule": rule, "v": v}
            for rule, (time, _, v) in newest.items()
            if (keep is None or one["__time"] - time <= keep) and (v + one["n"]) % 2
        ]
        yield from found
        if keeps_all and not found:
            yield {"k": one["k"], "n": one["n"], "rule": None, "v": None}


def sum_is_odd(pairs):
    return pc.equal(pc.bit_wise_and(pc.add(pairs["v"], pairs["n"]), 1), 1)


@given(
    st.integers(), st.booleans(), st.sampled_from([None, 4, 15]), st.booleans(),
    st.sampled_from([1, 3, 1000]),
)  # fmt: skip
def test_several_subjects_of_a_key_whatever_the_steps(seed, keeps_all, keep, collide, pairs_max):
    random = Random(seed)
    hash_of = colliding if collide else key_hash
    keys, rules = ("x", "y", None), ("a", "b", None)
    rows = [row(random.randrange(40), n, random.choice(keys), hash_of) for n in range(15)]
    versions = [
        addressed(
            random.randrange(40),
            {"k": random.choice(keys)},
            hash_of,
            rule=random.choice(rules),
            v=n,
        )
        for n in range(15)
    ]
    joins = JoinAsOf.of(
        "s", KEYS, LEFT, SUBJECTS, subject=["rule"], keeps_all=keeps_all, keep_ms=keep,
        condition=sum_is_odd,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(event_order, "PAIRS_MAX", pairs_max)
        found, (rows, versions), late = played(joins, random, rows, versions)
    assert late == 0
    assert as_multiset(found) == as_multiset([*naive_of_subjects(rows, versions, keeps_all, keep)])


def test_a_late_version_without_key_counts_once_and_its_copies_are_no_rows():
    joins = JoinAsOf.of("s", pa.schema([]), LEFT, RIGHT)
    state = MemoryState(joins)

    def step(before, after, rows, versions):
        """Rows are in partition 3, versions are copied to five."""
        sides = (
            [addressed(time, {}, lambda: 3, n=time) for time in rows],
            [addressed(time, {}, lambda p=p: p, v=time) for time in versions for p in range(5)],
        )
        arrived = tuple(map(as_input, sides, joins.input_schemas))
        taken = joins.step(StepInput(arrived, before, after, after), state)
        state.append(taken.delta, after)
        return taken.results.to_pylist(), taken.rows_in, taken.late

    assert step(None, 10, [4], [3]) == ([{"n": 4, "v": 3}], 2, 0)
    assert step(10, 20, [12], [9]) == ([{"n": 12, "v": 3}], 2, 1)
