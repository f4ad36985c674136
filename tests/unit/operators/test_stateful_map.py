"""`map_stateful`: a user's function per row with a state per key."""

from collections import Counter
from datetime import datetime, timezone
from itertools import repeat
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError, StoreMismatchError, UserFunctionError
from dagster_jet.operators.operator import MemoryState, StepInput
from dagster_jet.operators.stateful_map import STATE_COLUMN, StatefulMap
from dagster_jet.operators.user import python_rows, saved_value
from tests.unit.operators.stepping import Stepping, addressed, as_input, colliding

ROWS = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64())])
TOTALS = pa.schema([("a", pa.string()), ("b", pa.string()), ("total", pa.int64())])


def total(state, row):
    state.value += row["n"]
    return {"a": row["a"], "b": row["b"], "total": state.value}


def farewell(key, value, watermark_ms):
    return {**key, "total": -1000 * min(watermark_ms, 1000) - value}


def operator(function=total, create=int, ttl=None, on_evict=None, output=TOTALS):
    return StatefulMap("totals", ("a", "b"), ROWS, output, function, create, ttl, on_evict)


def row(time, n, a="x", b=None, hash_of=key_hash):
    return addressed(time, {"a": a, "b": b}, hash_of, n=n)


def totals(results):
    return [(result["a"], result["total"]) for result in results]


def test_v12_a_key_untouched_for_the_time_to_live_is_forgotten():
    run = Stepping(operator(ttl=2))
    assert totals(run.step([row(0, 1, "a"), row(1, 2, "b")], watermark=3)) == [("a", 1), ("b", 2)]
    assert totals(run.step([row(3, 3, "a"), row(3, 4, "b")])) == [("a", 3), ("b", 6)]
    run.step([], watermark=4)
    assert run.state.scan().num_rows == 2

    run = Stepping(operator(ttl=2))
    run.step([row(0, 1, "a"), row(1, 2, "b")], watermark=3)
    assert run.state.scan().column("a").to_pylist() == ["b"]
    run.step([], watermark=4)
    assert run.state.scan().num_rows == 0


def test_an_eviction_has_a_last_word_once_and_not_if_the_key_came_back():
    run = Stepping(operator(ttl=2, on_evict=farewell))
    run.step([row(0, 1, "a"), row(0, 2, "b")], watermark=2)
    assert totals(run.step([row(2, 5, "b")], watermark=3)) == [("b", 7), ("a", -3001)]
    run.restore(Random(1))
    assert totals(run.step([], watermark=4)) == []
    assert totals(run.complete()) == [("b", -5_007)], "the first watermark that ends it"


def test_a_key_that_comes_and_dies_in_one_step_has_its_last_word_at_once():
    run = Stepping(operator(ttl=2, on_evict=farewell))
    assert totals(run.step([row(0, 1, "a")], watermark=10)) == [("a", 1), ("a", -3_001)]
    assert run.deltas[-1].num_rows == 0


def test_without_a_time_to_live_nothing_is_late_and_nothing_forgotten():
    run = Stepping(operator(on_evict=farewell))
    run.step([row(0, 1)], watermark=100)
    assert totals(run.step([row(5, 1)])) == [("x", 2)]
    assert run.complete() == []
    assert run.late == 0
    assert run.state.scan().num_rows == 1


def test_with_a_time_to_live_rows_behind_the_watermark_are_late():
    run = Stepping(operator(ttl=50))
    run.step([row(10, 1)], watermark=10)
    assert totals(run.step([row(9, 1), row(10, 1)])) == [("x", 2)]
    assert run.late == 1


def test_a_touch_never_goes_back():
    run = Stepping(operator(ttl=5))
    run.step([row(20, 1)])
    run.step([row(3, 1)])
    run.step([], watermark=25)
    assert run.state.scan().num_rows == 1


def test_rows_of_a_key_come_by_arrival():
    def trace(state, row):
        state.value.append(row["n"])
        return {"a": row["a"], "b": ",".join(map(str, state.value)), "total": 0}

    tracing = operator(trace, list)
    rows = [row(5, 1), row(3, 2), row(5, 3), row(3, 4)]
    results = tracing.step(*_given(tracing, rows)).results
    assert results.column("b").to_pylist()[-1] == "1,2,3,4"


def _given(an_operator, rows):
    table = as_input(rows, an_operator.input_schemas[0])
    return StepInput((table,), None, None, 1), MemoryState(an_operator)


def forget_negative(state, row):
    if row["n"] < 0:
        state.clear()
        return None
    return total(state, row)


def test_a_cleared_key_starts_anew():
    run = Stepping(operator(forget_negative))
    results = run.step([row(0, 1), row(1, 2), row(2, -1), row(3, 5)])
    assert [t for _, t in totals(results)] == [1, 3, 5]
    run.step([row(4, -1)])
    run.restore(Random(3))
    assert totals(run.step([row(5, 7)])) == [("x", 7)]


def test_a_cleared_key_leaves_no_state_and_no_last_word():
    run = Stepping(operator(forget_negative, ttl=5, on_evict=farewell))
    run.step([row(0, 1)])
    run.step([row(3, -1)])
    assert run.state.scan().column(STATE_COLUMN).to_pylist() == [None]
    assert run.complete() == []
    assert run.state.scan().num_rows == 0


def test_a_key_cleared_before_it_was_saved_leaves_nothing():
    run = Stepping(operator(forget_negative))
    run.step([row(0, 1), row(1, -1)])
    assert run.deltas[-1].num_rows == 0


def replace(state, row):
    before, state.value = state.value, row["n"]
    if row["n"] == 0:
        state.clear()
        state.value = 99
    return {"a": row["a"], "b": row["b"], "total": before}


def test_a_state_may_be_replaced_also_after_clearing():
    run = Stepping(operator(replace, lambda: None)).operator
    results = run.step(*_given(run, [row(0, 5), row(1, 0), row(2, 3)])).results
    assert results.column("total").to_pylist() == [None, 5, 99]


def unchanged(state, row):
    return None


def test_a_state_that_did_not_change_is_not_written_again():
    run = Stepping(operator(unchanged))
    run.step([row(0, 1)])
    run.step([row(1, 1)])
    assert [delta.num_rows for delta in run.deltas] == [1, 0]


def several(state, row):
    for n in range(row["n"]):
        state.value += 1
        yield {"total": n, "b": row["b"], "a": row["a"]}


def test_a_generator_returns_several_rows():
    run = Stepping(operator(several))
    assert [t for _, t in totals(run.step([row(0, 3)]))] == [0, 1, 2]
    assert (
        saved_value.load(run.state.scan().column(STATE_COLUMN)[0].as_py(), StateFormat.PLAIN) == 3
    )


NESTED = pa.schema([("history", pa.list_(pa.int64()))])


def history(state, row):
    state.value["history"].append(row["n"])
    return state.value


def new_history():
    return {"history": []}


def test_the_state_itself_may_be_returned_and_changed_afterwards():
    run = Stepping(operator(history, new_history, output=NESTED))
    assert run.step([row(0, 1), row(1, 2)]) == [{"history": [1]}, {"history": [1, 2]}]


AT = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())])


def same(state, row):
    return row


def test_times_go_through_unchanged_and_in_utc():
    an_operator = StatefulMap("same", ("k",), AT, AT, same, int)
    at = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    rows = [
        addressed(0, {"k": "x"}, at=at, day=at.date()),
        addressed(1, {"k": "x"}, at=None, day=None),
    ]
    assert Stepping(an_operator).step(rows) == [
        {"k": "x", "at": at, "day": at.date()},
        {"k": "x", "at": None, "day": None},
    ]


def raises(state, row):
    state.value += row["n"]
    return 1 / (row["n"] - 2) and total(state, row)


def test_what_a_function_raises_names_stage_key_and_time_and_changes_nothing():
    run = Stepping(operator(raises))
    run.step([row(0, 1)])
    before = run.state.scan()
    with pytest.raises(UserFunctionError) as caught:
        run.step([row(1, 1), row(1500, 2, "y")])
    assert caught.value.stage == "totals"
    assert caught.value.position == "a='y', b=None at 1970-01-01T00:00:01.500+00:00"
    assert "raises raised ZeroDivisionError: division by zero." in str(caught.value)
    assert caught.value.cure
    assert run.state.scan().equals(before)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"a": "x", "total": 1}, "returned a row without the column b."),
        ({"a": "x", "b": "", "total": 1, "c": 1}, "with the column c that is not in output_schema"),
        ({"a": "x", "b": "", "total": "1"}, "'1' for the column total, which is int64"),
        ({"a": "x", "b": "", "total": 1.5}, "1.5 for the column total, which is int64"),
        ({"a": 7, "b": "", "total": 1}, "7 for the column a, which is string"),
        ("text", "a str where a row"),
        (5, "a int where a row"),
        ([("x", "", 1)], "a tuple where a row"),
    ],
)
def test_a_row_that_does_not_fit_the_output_schema(returned, message):
    def function(state, row):
        good = {"a": "x", "b": "", "total": 1}
        return returned if row["a"] == "bad" else [good, good]

    run = operator(function)
    rows = [row(0, 1, a) for a in ("x", "y", "bad", "z")]
    with pytest.raises(UserFunctionError, match="a='bad'") as caught:
        run.step(*_given(run, rows))
    assert message in str(caught.value)


def test_a_generator_that_does_not_end_is_named(monkeypatch):
    """Failed before: its rows filled the memory until the worker was killed."""
    monkeypatch.setattr(python_rows, "ROWS_MAX", 1_000)

    def function(state, row):
        good = {"a": "x", "b": "", "total": 1}
        return repeat(good) if row["a"] == "bad" else repeat(good, 1_000)

    run = operator(function)
    with pytest.raises(UserFunctionError, match="a='bad'") as caught:
        run.step(*_given(run, [row(0, 1, a) for a in ("x", "bad", "z")]))
    assert caught.value.stage == "totals"
    assert "function returned more than 1,000 rows at once." in str(caught.value)
    assert "Let its generator end" in str(caught.value.cure)
    assert run.step(*_given(run, [row(0, 1, "x")])).results.num_rows == 1_000


def test_a_column_that_must_not_be_null():
    schema = pa.schema([pa.field("a", pa.string(), nullable=False)])
    an_operator = operator(lambda state, row: {"a": None}, output=schema)
    with pytest.raises(UserFunctionError, match="must not be null"):
        an_operator.step(*_given(an_operator, [row(0, 1)]))


def test_a_state_that_is_not_plain_is_refused_with_its_place():
    an_operator = operator(unchanged, lambda: lambda: None)
    with pytest.raises(UserFunctionError, match="a function, cannot be saved") as caught:
        an_operator.step(*_given(an_operator, [row(0, 1)]))
    for said in ("stage 'totals'", "a='x'", "value is a function", 'state_format="pickle"'):
        assert said in str(caught.value)


def test_an_eviction_that_raises_names_its_key():
    def on_evict(key, value, watermark_ms):
        key.clear()
        raise RuntimeError("no")

    an_operator = operator(ttl=1, on_evict=on_evict)
    given, state = _given(an_operator, [row(0, 1)])
    state.append(an_operator.step(given, state).delta, None)
    empty = an_operator.input_schemas[0].empty_table()
    with pytest.raises(UserFunctionError, match=r"a='x', b=None.*on_evict raised RuntimeError: no"):
        an_operator.step(type(given)((empty,), None, 100, 2), state)


def test_a_state_of_an_unknown_format_is_refused():
    with pytest.raises(StoreMismatchError, match="newer"):
        saved_value.load(b"\x03whatever", StateFormat.PLAIN)


def test_an_output_without_columns_is_refused():
    with pytest.raises(PipelineError, match="no columns"):
        operator(output=pa.schema([]))


class Reference:
    """A dict of states, one row after the other; evictions before a row, and by the watermark."""

    def __init__(self, ttl):
        self.ttl, self.states, self.touches = ttl, {}, {}
        self.watermark, self.late = None, 0

    def step(self, rows, watermark):
        results = []
        for one in rows:
            time, key = one["__time"], (one["a"], one["b"])
            if self.ttl is not None and self.watermark is not None and time < self.watermark:
                self.late += 1
                continue
            if self.ttl is not None and time > self.touches.get(key, time) + self.ttl:
                results += self.evicted(key)
            self.touches[key] = max(self.touches.get(key, time), time)
            if one["n"] < 0:
                self.states.pop(key, None)
            else:
                self.states[key] = self.states.get(key, 0) + one["n"]
                results.append((*key, self.states[key]))
        self.watermark = watermark
        for key, touch in list(self.touches.items()):
            if self.ttl is not None and touch < watermark - self.ttl:
                results += self.evicted(key)
        return results

    def evicted(self, key):
        told = self.touches.pop(key) + self.ttl + 1
        if key not in self.states:
            return []
        return [(*key, -1000 * min(told, 1000) - self.states.pop(key))]


names = st.sampled_from([None, "x", "y"])
events = st.lists(st.tuples(st.integers(0, 50), st.integers(-1, 3), names, names), max_size=10)


@given(
    steps=st.lists(st.tuples(events, st.integers(0, 12), st.booleans()), max_size=8),
    ttl=st.sampled_from([None, 0, 4, 20]),
    hash_of=st.sampled_from([key_hash, colliding]),
    seed=st.integers(0, 2**16),
)
def test_as_the_reference(steps, ttl, hash_of, seed):
    run = Stepping(operator(forget_negative, ttl=ttl, on_evict=farewell))
    reference, random, watermark = Reference(ttl), Random(seed), 0
    for batch, advance, restored in steps:
        rows = [row(t, n, a, b, hash_of) for t, n, a, b in batch]
        watermark += advance
        results = [tuple(r.values()) for r in run.step(rows, watermark=watermark)]
        assert Counter(results) == Counter(reference.step(rows, watermark))
        assert run.late == reference.late
        if restored:
            run.restore(random)
    results = [tuple(r.values()) for r in run.complete()]
    assert Counter(results) == Counter(reference.step([], 10**6))
    if ttl is not None:
        assert run.state.scan().num_rows == 0
