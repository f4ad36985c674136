"""`on_timer`: called between the same rows however these are divided into steps."""

from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import UserFunctionError
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.timed_map import TimedMap
from dagster_jet.operators.user import saved_value
from tests.unit.operators.stepping import Stepping, addressed, colliding

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.int64())])
SEEN = pa.schema([("k", pa.string()), ("seen", pa.string())])


def note(state, row):
    """`n`: 0 clears, 1 removes the timer, more sets it to so many ms from now; less into the
    past."""
    state.value.append(row["n"])
    if row["n"] == 0:
        state.clear()
    elif row["n"] == 1:
        state.cancel_timer()
    else:
        state.set_timer(row["at"] + row["n"])
    return {"k": row["k"], "seen": f"{row['at']}"}


def ring(state, key, time_ms):
    """Sets the timer at most twice more; a third call clears the state."""
    state.value.append("timer")
    said = {**key, "seen": f"timer {time_ms} {state.value}"}
    if state.value[-3:] == ["timer"] * 3:
        state.clear()
    elif len(state.value) % 2:
        state.set_timer(time_ms + 5)
    return said


def timed(function=note, on_timer=ring, keys=("k",), rows=ROWS):
    inner = TimedMap("s", keys, rows, SEEN, function, list, ttl_ms=0, on_timer=on_timer)
    return InEventOrder(inner)


def row(at, n, k="x", hash_of=key_hash):
    return addressed(at, {"k": k}, hash_of, n=n, at=at)


def naive(rows):
    """Row after row of each key, and its timer between them."""
    results = {}
    for k in {one["k"] for one in rows}:
        seen, values, timer = results.setdefault(k, []), [], None
        mine = sorted((one for one in rows if one["k"] == k), key=lambda one: one["at"])
        for one in [*mine, None]:
            while timer is not None and (one is None or timer < one["at"]):
                values.append("timer")
                seen.append(f"timer {timer} {values}")
                if values[-3:] == ["timer"] * 3:
                    values, timer = [], None
                else:
                    timer = timer + 5 if len(values) % 2 else None
            if one is not None:
                seen.append(str(one["at"]))
                values.append(one["n"])
                if one["n"] == 0:
                    values, timer = [], None
                else:
                    timer = None if one["n"] == 1 else max(one["at"], one["at"] + one["n"])
    return results


def plan(state, row):
    """`n`: 0 clears, 1 removes "b"; else "a", "b" and the one without a name move."""
    state.value.append(row["n"])
    if row["n"] == 0:
        state.clear()
    elif row["n"] == 1:
        state.cancel_timer("b")
    else:
        state.set_timer(row["at"] + row["n"], "ab"[row["n"] % 2])
        if row["n"] % 3 == 0:
            state.set_timer(row["at"] + 2 * (row["n"] // 2))
    return {"k": row["k"], "seen": f"{row['at']}"}


def act(state, key, time_ms):
    state.value.append(state.timer)
    said = {**key, "seen": f"{state.timer} {time_ms} {state.value}"}
    if state.timer == "a":
        state.set_timer(time_ms + 7, "b")
    elif state.timer == "b" and len(state.value) % 3 == 0:
        state.set_timer(time_ms + 1)
    elif len(state.value) > 9:
        state.clear()
    return said


def naive_named(rows):
    results = {}
    for k in {one["k"] for one in rows}:
        seen, values, due = results.setdefault(k, []), [], []
        mine = sorted((one for one in rows if one["k"] == k), key=lambda one: one["at"])
        for one in [*mine, None]:
            while due and (one is None or min(due)[0] < one["at"]):
                at, name = min(due)
                due.remove((at, name))
                values.append(name)
                seen.append(f"{name} {at} {values}")
                if name == "a":
                    due = [(t, n) for t, n in due if n != "b"] + [(at + 7, "b")]
                elif name == "b" and len(values) % 3 == 0:
                    due = [(t, n) for t, n in due if n] + [(at + 1, "")]
                elif len(values) > 9:
                    values, due = [], []
            if one is not None:
                seen.append(str(one["at"]))
                values.append(one["n"])
                moved = {}
                if one["n"] == 0:
                    values, due = [], []
                elif one["n"] == 1:
                    due = [(t, n) for t, n in due if n != "b"]
                else:
                    moved["ab"[one["n"] % 2]] = one["at"] + one["n"]
                    if one["n"] % 3 == 0:
                        moved[""] = one["at"] + 2 * (one["n"] // 2)
                due = [(t, n) for t, n in due if n not in moved]
                due += [(max(t, one["at"]), n) for n, t in moved.items()]
    return results


@given(
    functions=st.sampled_from([(note, ring, naive), (plan, act, naive_named)]),
    arrived=st.lists(
        st.tuples(st.integers(0, 60), st.integers(-3, 20), st.sampled_from([None, "x", "y"])),
        max_size=14,
    ),
    cuts=st.lists(st.integers(0, 14), max_size=5),
    advances=st.lists(st.integers(0, 120), min_size=6, max_size=6),
    hash_of=st.sampled_from([key_hash, colliding]),
    seed=st.integers(0, 2**16),
)
def test_however_rows_are_divided_into_steps(functions, arrived, cuts, advances, hash_of, seed):
    function, on_timer, naively = functions
    every = [row(t, n, k, hash_of) for t, n, k in arrived]
    divided, random, found = Stepping(timed(function, on_timer)), Random(seed), []
    bounds = [0, *sorted(min(cut, len(every)) for cut in cuts), len(every)]
    for (begin, end), advance in zip(pairwise(bounds), advances, strict=False):
        earliest = min((r["at"] for r in every[end:]), default=200)  # no later row is late
        watermark = max(divided.watermark or 0, min(advance, earliest))
        found += divided.step(every[begin:end], watermark=watermark)
        if random.random() < 0.5:
            divided.restore(random)
    found += divided.complete()
    expected = naively(every)
    assert {k: [r["seen"] for r in found if r["k"] == k] for k in expected} == expected
    assert divided.late == 0


def plan_together(state, row):
    for name in ("b", "a", ""):
        state.set_timer(row["at"] + 10, name)
    state.set_timer(row["at"] + 4, "z")


def say_name(state, key, time_ms):
    return {"k": state.timer, "seen": str(time_ms)}


def test_several_timers_of_a_key_are_called_by_time_and_name():
    run = Stepping(timed(plan_together, say_name))
    run.step([row(0, 5)], watermark=3)
    run.restore(Random(1))
    assert run.step([], watermark=5) == [{"k": "z", "seen": "4"}]
    run.restore(Random(2))
    assert [one["k"] for one in run.step([], watermark=11)] == ["", "a", "b"]
    assert run.complete() == []


def test_a_timer_of_a_cleared_key_is_refused():
    def watch(state, row):
        state.clear()
        state.set_timer(row["at"] + 10)

    run = Stepping(timed(watch))
    with pytest.raises(UserFunctionError, match=r"set_timer\(\) after clear\(\)"):
        run.step([row(0, 5)], watermark=3)


def test_a_state_saved_before_timers_had_names_is_read():
    """The saved row's time is the timer."""
    run = Stepping(timed())
    run.step([row(0, 10)], watermark=5)
    (saved,) = [r for r in run.state.scan().to_pylist() if r["__row"] is None]
    assert (saved["__time"], saved["__state"]) == (10, saved_value.save([10], StateFormat.PLAIN))


def test_a_timer_is_called_when_the_watermark_is_past_it():
    run = Stepping(timed())
    assert run.step([row(0, 10)], watermark=10) == [{"k": "x", "seen": "0"}]
    assert run.step([], watermark=11) == [{"k": "x", "seen": "timer 10 [10, 'timer']"}]
    assert run.step([], watermark=90) == []


def test_without_keys():
    run = Stepping(timed(on_timer=lambda state, key, time_ms: {"k": str(key), "seen": ""}, keys=()))
    run.step([addressed(0, {}, key_hash, k="x", n=5, at=0)], watermark=3)
    assert run.step([], watermark=9) == [{"k": "{}", "seen": ""}]


def test_a_timer_that_is_always_set_again_ends_with_an_error():
    def always(state, key, time_ms):
        state.set_timer(time_ms + 1)

    run = Stepping(timed(on_timer=always))
    run.step([row(0, 10)], watermark=20_000)
    with pytest.raises(UserFunctionError, match=r"after the last row.*\n?.*k='x'|k='x'"):
        run.complete()


def test_a_timer_that_is_not_later_is_refused():
    run = Stepping(timed(on_timer=lambda state, key, time_ms: state.set_timer(time_ms)))
    with pytest.raises(UserFunctionError, match="not later"):
        run.step([row(0, 10)], watermark=11)


def test_a_state_that_cannot_be_saved_names_the_key():
    def spoil(state, key, time_ms):
        state.value = object()

    run = Stepping(timed(on_timer=spoil))
    run.step([row(0, 10)], watermark=5)
    with pytest.raises(UserFunctionError, match="k='x'"):
        run.step([], watermark=11)


def test_set_timer_without_on_timer_is_refused():
    run = Stepping(InEventOrder(StatefulMap("s", ("k",), ROWS, SEEN, note, list)))
    with pytest.raises(UserFunctionError, match="set_timer"):
        run.step([row(0, 10)], watermark=11)
