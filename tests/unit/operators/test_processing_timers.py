"""`on_timer` in processing time: what is called depends on the clock that each row gets alone."""

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.errors import UserFunctionError
from dagster_jet.operators.timed_map import TimedMap
from tests.unit.operators.stepping import Stepping, addressed, colliding
from tests.unit.operators.test_timed_map import ROWS, SEEN


def plan(state, row):
    """`n`: 0 clears, 1 removes "b"; else "a" or "b" moves to so many ms from now."""
    state.value.append(row["n"])
    if row["n"] == 0:
        state.clear()
    elif row["n"] == 1:
        state.cancel_timer("b")
    else:
        state.set_timer(state.now_ms + row["n"], "ab"[row["n"] % 2])
    return {"k": row["k"], "seen": f"{state.now_ms}"}


def act(state, key, time_ms):
    """ "a" comes again 7 ms after its time, also if that is over; "b" at every third call from
    now."""
    state.value.append(state.timer)
    said = {**key, "seen": f"{state.timer} {time_ms} at {state.now_ms} {state.value}"}
    if len(state.value) > 12:
        state.clear()
    elif state.timer == "a":
        state.set_timer(time_ms + 7)
    elif len(state.value) % 3 == 0:
        state.set_timer(state.now_ms + 4, "b")
    return said


def naive(epochs):
    """Epoch after epoch: what is due of a key, then its rows."""
    seen, states = defaultdict(list), {}
    for clock, rows in epochs:
        for k in {*states, *(row["k"] for row in rows)}:
            values, due = states.pop(k, ([], {}))
            for row in [*(row for row in rows if row["k"] == k), None]:
                while due and min(due.values()) < clock:
                    at, name = min((at, name) for name, at in due.items())
                    del due[name]
                    values.append(name)
                    seen[k].append(f"{name} {at} at {clock} {values}")
                    if len(values) > 12:
                        values, due = [], {}
                    elif name == "a":
                        due[""] = at + 7
                    elif len(values) % 3 == 0:
                        due["b"] = clock + 4
                if row is not None:
                    values.append(row["n"])
                    seen[k].append(f"{clock}")
                    if row["n"] == 0:
                        values, due = [], {}
                    elif row["n"] == 1:
                        due.pop("b", None)
                    else:
                        due["ab"[row["n"] % 2]] = max(clock + row["n"], clock)
            states[k] = (values, due)
    return seen


def timed(on_timer=act, function=plan):
    return TimedMap(
        "s", ("k",), ROWS, SEEN, function, list,
        ttl_ms=0, on_timer=on_timer, in_processing_time=True,
    )  # fmt: skip


def row(n, k="x", at=0, hash_of=key_hash):
    return addressed(at, {"k": k}, hash_of, n=n, at=at)


@given(
    epochs=st.lists(
        st.tuples(
            st.integers(0, 30),
            st.lists(st.tuples(st.integers(-3, 20), st.sampled_from([None, "x", "y"])), max_size=5),
        ),
        max_size=9,
    ),
    hash_of=st.sampled_from([key_hash, colliding]),
    seed=st.integers(0, 2**16),
)
def test_rows_and_timers_of_an_epoch_however_it_is_cut(epochs, hash_of, seed):
    """Event times are those of any order: none is late. An epoch is cut into steps of its clock."""
    random, clock, played, found = Random(seed), 1_000, [], []
    run = Stepping(timed())
    for passed, arrived in epochs:
        clock += passed
        rows = [row(n, k, random.randrange(-50, 5_000), hash_of) for n, k in arrived]
        played.append((clock, rows))
        cut = random.randrange(len(rows) + 1)
        for part in (rows[:cut], rows[cut:]) if random.random() < 0.5 else (rows,):
            found += run.step(part, watermark=clock)
            if random.random() < 0.3:
                run.restore(random)
    expected = naive(played)
    assert {k: [r["seen"] for r in found if r["k"] == k] for k in expected} == expected
    assert run.late == 0 and run.rows_in == sum(len(rows) for _, rows in played)


def test_a_timer_is_called_in_the_first_epoch_behind_it_and_says_its_time():
    """The timer is also called in the first epoch after a restart, long after it became due."""
    run = Stepping(timed())
    run.step([row(10)], watermark=1_000)
    assert run.step([], watermark=1_010) == []
    run.restore(Random(1))
    assert [one["seen"][:14] for one in run.step([], watermark=9_000)] == [
        "a 1010 at 9000",
        " 1017 at 9000 ",
    ]
    assert run.step([], watermark=9_001) == []


def test_a_time_that_is_over_waits_for_the_next_epoch():
    def past(state, row):
        state.set_timer(5, "b")

    run = Stepping(timed(function=past))
    assert run.step([row(1)], watermark=1_000) == []
    assert [one["seen"] for one in run.step([], watermark=1_001)] == ["b 1000 at 1001 ['b']"]


def test_a_timer_that_is_not_later_than_the_one_called_is_refused():
    run = Stepping(timed(lambda state, key, time_ms: state.set_timer(time_ms)))
    run.step([row(4)], watermark=1_000)
    with pytest.raises(UserFunctionError, match="not later"):
        run.step([], watermark=2_000)
