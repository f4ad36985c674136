"""`map_stateful(on_error="dead-letter")`: a bad row is set aside, as if it had never come."""

import json
from collections import Counter
from datetime import datetime, timezone
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.job_context import JobContext, job_context
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import UserFunctionError
from dagster_jet.operators.operator import MemoryState, StepInput
from dagster_jet.operators.stateful_map import STATE_COLUMN, StatefulMap
from dagster_jet.operators.user import saved_value
from dagster_jet.operators.user.dead_letters import row_json
from tests.unit.operators.stepping import Stepping, addressed, as_input

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
HISTORY = pa.schema([("k", pa.string()), ("seen", pa.list_(pa.int64()))])


def history(state, row):
    """Changes state and row in place, and only then looks at what it has got."""
    state.value.append(row["n"])
    row["n"] = None
    if state.value[-1] < 0:
        raise ValueError(f"negative: {state.value[-1]}")
    if state.value[-1] == 0:
        state.clear()
        return None
    return {"k": row["k"], "seen": state.value}


def farewell(key, value, watermark_ms):
    return {**key, "seen": [-1, *value]}


def operator(function=history, create=list, ttl=None, on_evict=None, output=HISTORY, **options):
    return StatefulMap(
        "picky", ("k",), ROWS, output, function, create, ttl, on_evict,
        **{"keeps_dead_letters": True, **options},
    )  # fmt: skip


def row(time, n, k="x"):
    return addressed(time, {"k": k}, n=n)


def seen(results):
    return [result["seen"] for result in results]


def saved(run):
    return [
        saved_value.load(s, StateFormat.PLAIN)
        for s in run.state.scan().column(STATE_COLUMN).to_pylist()
        if s
    ]


def test_a_bad_row_leaves_the_state_as_it_was_although_it_was_changed_in_place():
    run = Stepping(operator())
    results = run.step([row(0, 1), row(1, -5), row(2, 2), row(3, -6), row(4, -7), row(5, 3)])
    assert seen(results) == [[1], [1, 2], [1, 2, 3]]
    assert saved(run) == [[1, 2, 3]]
    run.restore(Random(1))
    assert seen(run.step([row(6, -1), row(7, 4), row(8, -2)])) == [[1, 2, 3, 4]]
    assert saved(run) == [[1, 2, 3, 4]]


def test_a_rejected_row_says_where_it_is_what_was_wrong_and_what_it_was():
    run = Stepping(operator())
    run.step([row(1500, -5), row(0, 1, None), row(1, -6, None)])
    assert run.rejected == [
        {
            "source": "picky",
            "position": f"k={k!r} at 1970-01-01T00:00:0{at}+00:00",
            "reason": f"ValueError: negative: {n}",
            "raw": json.dumps({"k": k, "n": n}, separators=(",", ":")),
        }
        for k, at, n in (("x", "1.500", -5), (None, "0.001", -6))
    ]


def test_a_key_with_bad_rows_only_has_no_state():
    run = Stepping(operator(ttl=5, on_evict=farewell))
    assert run.step([row(0, -1), row(1, -2)]) == []
    assert run.deltas[-1].num_rows == 0
    assert run.complete() == []


def test_a_bad_row_after_a_clearing_leaves_the_key_cleared():
    run = Stepping(operator())
    run.step([row(0, 1)])
    run.step([row(1, 0), row(2, -1), row(3, -1)])
    assert saved(run) == []
    assert seen(run.step([row(4, 7)])) == [[7]]


def test_a_bad_row_is_no_touch():
    run = Stepping(operator(ttl=5, on_evict=farewell))
    run.step([row(0, 1), row(4, -1)])
    assert seen(run.step([row(5, -1)], watermark=5)) == []
    # Forgotten at 6, although there were rows at 4 and 5, and one in this very step.
    assert seen(run.step([row(6, -1)], watermark=6)) == [[-1, 1]]
    assert saved(run) == [] and len(run.rejected) == 3


def test_a_life_that_a_bad_row_shortens_takes_no_rows_of_the_next_key():
    """x lives until 45 with its bad row, and until 42 without."""
    run = Stepping(operator(ttl=5))
    results = run.step([row(40, 1), row(44, -1), row(46, 2), row(60, 3), row(50, 4, "y")])
    assert sorted((r["k"], r["seen"]) for r in results) == [
        ("x", [1]), ("x", [2]), ("x", [3]), ("y", [4]),
    ]  # fmt: skip
    assert len(run.rejected) == 1


def test_a_bad_row_that_moves_no_state_writes_none():
    run = Stepping(operator(ttl=5))
    run.step([row(0, 1)])
    run.step([row(3, -1)])
    assert [delta.num_rows for delta in run.deltas] == [1, 0]


def test_late_rows_are_late_and_not_rejected():
    run = Stepping(operator(ttl=50))
    run.step([row(10, 1)], watermark=10)
    run.step([row(9, -1)])
    assert run.late == 1 and run.rejected == []


NUMBERS = pa.schema([("k", pa.string()), pa.field("n", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"k": "x", "n": "1"}, "returned '1' for the column n, which is int64"),
        ({"k": "x", "n": 1.5}, "returned 1.5 for the column n"),
        ({"k": "x", "n": None}, "it must not be null"),
        ({"k": "x"}, "returned a row without the column n"),
        ([{"k": "x", "n": 1}, "text"], "returned a str where a row"),
    ],
)
def test_a_row_whose_output_does_not_fit_is_rejected_too(returned, reason):
    def function(state, row):
        state.value += row["n"]
        return returned if row["n"] == 2 else {"k": row["k"], "n": state.value}

    run = Stepping(operator(function, int, output=NUMBERS))
    results = run.step([row(n, n) for n in (1, 2, 3)])
    assert [result["n"] for result in results] == [1, 4]
    (rejected,) = run.rejected
    assert reason in rejected["reason"] and rejected["raw"] == '{"k":"x","n":2}'


def test_what_a_generator_gave_before_it_raised_is_not_emitted():
    def several(state, row):
        for n in range(3):
            state.value.append(n)
            yield {"k": row["k"], "seen": state.value}
            if row["n"] < 0:
                raise KeyError("gone")

    run = Stepping(operator(several))
    assert len(run.step([row(0, 1), row(1, -1), row(2, 1)])) == 6
    assert saved(run) == [[0, 1, 2] * 2]
    assert [r["reason"] for r in run.rejected] == ["KeyError: 'gone'"]


def one_step(an_operator, rows):
    """Runs one step without `Stepping`, which runs every step twice."""
    table = as_input(rows, an_operator.input_schemas[0])
    return an_operator.step(StepInput((table,), None, None, 1), MemoryState(an_operator))


def test_good_rows_are_handed_over_twice_at_most_however_many_are_bad():
    calls = Counter()

    def counting(state, row):
        calls[row["n"]] += 1
        return history(state, row)

    rows = [row(n, n + 1 if n % 3 else -n - 1) for n in range(300)]
    one_step(operator(counting), rows)
    assert max(calls.values()) == 2
    assert sum(calls.values()) < 2 * len(rows)


def test_where_all_goes_well_nothing_is_handed_over_twice():
    calls = []

    def counting(state, row):
        calls.append(row["n"])
        return history(state, row)

    step = one_step(operator(counting), [row(n, n + 1) for n in range(9)])
    assert calls == list(range(1, 10)) and step.rejected.num_rows == 0


def test_output_and_state_agree_although_the_function_is_never_twice_the_same():
    numbers = iter(range(1000))

    def numbering(state, row):
        state.value.append(next(numbers))
        if row["n"] < 0:
            raise ValueError
        return {"k": row["k"], "seen": state.value}

    step = one_step(operator(numbering), [row(n, -1 if n == 3 else 1) for n in range(5)])
    (state,) = step.delta.column(STATE_COLUMN).to_pylist()
    assert step.results.column("seen").to_pylist()[-1] == saved_value.load(state, StateFormat.PLAIN)
    assert step.results.num_rows == 4


def broken():
    raise RuntimeError("no state today")


def test_what_is_no_rows_fault_fails_the_step():
    with pytest.raises(UserFunctionError, match=r"k='x'.*broken raised RuntimeError"):
        Stepping(operator(create=broken)).step([row(0, 1)])

    def no_farewell(key, value, watermark_ms):
        raise RuntimeError("no")

    run = Stepping(operator(ttl=1, on_evict=no_farewell))
    run.step([row(0, 1)])
    with pytest.raises(UserFunctionError, match="no_farewell raised RuntimeError"):
        run.complete()


def test_by_default_the_error_names_the_row_and_the_cure():
    with pytest.raises(UserFunctionError) as caught:
        Stepping(operator(keeps_dead_letters=False)).step([row(0, 1), row(1, -5)])
    said = str(caught.value)
    assert "stage 'picky'" in said and "k='x' at 1970-01-01T00:00:00.001" in said
    assert 'history raised ValueError: negative: -5. The row: {"k":"x","n":-5}' in said
    assert 'on_error="dead-letter"' in said


def test_without_event_time_or_key_a_position_says_what_there_is():
    run = Stepping(operator(has_time=False))
    run.step([row(0, -1)])
    assert [r["position"] for r in run.rejected] == ["k='x'"]

    everything = StatefulMap("all", (), ROWS, HISTORY, history, list, keeps_dead_letters=True)
    run = Stepping(everything)
    run.step([{**row(7, -1), "__hash": 0, "__partition": 0}])
    assert [r["position"] for r in run.rejected] == ["at 1970-01-01T00:00:00.007+00:00"]


def test_a_row_as_json():
    at = datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc)
    row = {
        "text": "ü\n",
        "at": at,
        "day": at.date(),
        "bytes": b"\x00\xff",
        "list": [1.5, float("nan"), float("-inf"), None],
        "struct": {"yes": True},
        "pairs": [("a", 1)],
    }
    assert row_json(row) == (
        '{"text":"ü\\n","at":"2024-01-02T03:04:05.000678Z","day":"2024-01-02","bytes":"AP8=",'
        '"list":[1.5,"NaN","-Infinity",null],"struct":{"yes":true},"pairs":[["a",1]]}'
    )


def test_an_exception_may_say_anything():
    def odd(state, row):
        raise ValueError("\udcff two\nlines")

    run = Stepping(operator(odd))
    run.step([row(0, 1)])
    assert run.rejected[0]["reason"] == "ValueError: ? two\nlines"
    with pytest.raises(UserFunctionError) as caught:
        Stepping(operator(odd, keeps_dead_letters=False)).step([row(0, 1)])
    assert "\n" not in str(caught.value)


names = st.sampled_from([None, "x", "y"])
events = st.lists(st.tuples(st.integers(0, 50), st.integers(-2, 3), names), max_size=12)


@given(
    steps=st.lists(st.tuples(events, st.integers(0, 12), st.booleans()), max_size=6),
    ttl=st.sampled_from([None, 4, 20]),
    seed=st.integers(0, 2**16),
)
def test_all_is_as_if_bad_rows_had_never_come(steps, ttl, seed):
    """A second run, that fails at a bad row, is given the good ones only."""
    run = Stepping(operator(ttl=ttl, on_evict=farewell))
    only_good = Stepping(operator(ttl=ttl, on_evict=farewell, keeps_dead_letters=False))
    random, watermark, bad = Random(seed), 0, 0
    for batch, advance, restored in steps:
        rows = [row(t, n, k) for t, n, k in batch]
        late_before = -1 if ttl is None or run.watermark is None else run.watermark
        bad += sum(r["n"] < 0 and r["__time"] >= late_before for r in rows)
        watermark += advance
        results = run.step(rows, watermark=watermark)
        expected = only_good.step([r for r in rows if r["n"] >= 0], watermark=watermark)
        assert Counter(map(repr, results)) == Counter(map(repr, expected))
        assert len(run.rejected) == bad
        if restored:
            run.restore(random)
    assert sorted(map(repr, run.state.scan().drop_columns(["__version"]).to_pylist())) == sorted(
        map(repr, only_good.state.scan().drop_columns(["__version"]).to_pylist())
    )
    assert Counter(map(repr, run.complete())) == Counter(map(repr, only_good.complete()))


def test_what_a_bad_row_counted_does_not_count():
    """Counts of a bad row are undone if the function raises, and if its result does not fit, which
    is noticed later."""

    def counting(state, row):
        n = row["n"]
        job_context().metrics.counter("rows").add()
        job_context().metrics.counter("sum").add(abs(n))
        results = history(state, row)
        return {"k": "x", "seen": ["wrong"]} if n == 7 else results

    for bad in ([], [7]):
        run, context = Stepping(operator(counting)), JobContext()
        with context.entered():
            run.step([row(at, n) for at, n in enumerate([1, -5, 2, *bad, -6, -7, 3])])
        assert len(run.rejected) == 3 + len(bad)
        twice = {"rows": 2 * 3, "sum": 2 * 6}  # `Stepping` takes each step twice
        assert context.metrics.counted == twice
