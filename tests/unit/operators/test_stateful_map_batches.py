"""`map_stateful(in_batches=True)`: a user's function over tables, with a state of columns per key.

What it means is what the form per row means: most tests run both and compare.
"""

import re
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dagster_jet
from dagster_jet import Pipeline, sources
from dagster_jet.core.partition import key_hash
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError, UserFunctionError
from dagster_jet.operators.operator import PARTITION_COLUMN, MemoryState, StepInput
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user import saved_value
from tests.unit.operators.stepping import FINAL_WATERMARK, Stepping, addressed, as_input, colliding

KEYS = ("a", "b")
ROWS = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64())])
TOTALS = pa.schema([("a", pa.string()), ("b", pa.string()), ("total", pa.int64())])
STATE = pa.schema([("sum", pa.int64()), ("rows", pa.int32())])
KEYED_STATE = pa.schema([*list(TOTALS)[:2], *STATE])


def totals(state, rows):
    """Running sums; a row with a negative number clears its key. Returns what has changed."""
    before = {(s["a"], s["b"]): (s["sum"], s["rows"]) for s in state.to_pylist()}
    now, results = dict(before), []
    for row in rows.to_pylist():
        key = row["a"], row["b"]
        if row["n"] < 0:
            now[key] = None, None
            continue
        sum_, count = now[key]
        now[key] = (sum_ or 0) + row["n"], (count or 0) + 1
        results.append((*key, now[key][0]))
    changed = [(*key, *value) for key, value in now.items() if value != before[key]]
    return table(TOTALS, results), table(KEYED_STATE, changed)


def table(schema, rows):
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def farewell(states, watermarks):
    rows = zip(states.to_pylist(), watermarks.to_pylist(), strict=True)
    said = [(s["a"], s["b"], -1000 * min(w, 1000) - s["sum"]) for s, w in rows]
    return table(TOTALS, said)


def operator(function=totals, ttl=None, on_evict=None, output=TOTALS, state=STATE, keys=KEYS):
    return StatefulMapInBatches("totals", keys, ROWS, output, state, function, ttl, on_evict)


def total_by_row(state, row):
    if row["n"] < 0:
        state.clear()
        return None
    state.value = (state.value[0] + row["n"], state.value[1] + 1)
    return {"a": row["a"], "b": row["b"], "total": state.value[0]}


def farewell_by_row(key, value, watermark_ms):
    return {**key, "total": -1000 * min(watermark_ms, 1000) - value[0]}


def by_row(ttl=None, on_evict=None):
    return StatefulMap("totals", KEYS, ROWS, TOTALS, total_by_row, lambda: (0, 0), ttl, on_evict)


def row(time, n, a="x", b=None, hash_of=key_hash):
    return addressed(time, {"a": a, "b": b}, hash_of, n=n)


def values(results):
    return [(result["a"], result["total"]) for result in results]


def states(run):
    return {s["a"]: (s["sum"], s["rows"]) for s in run.state.scan().to_pylist()}


def test_v12_a_key_untouched_for_the_time_to_live_is_forgotten():
    run = Stepping(operator(ttl=2))
    assert values(run.step([row(0, 1, "a"), row(1, 2, "b")], watermark=3)) == [("a", 1), ("b", 2)]
    assert states(run) == {"b": (2, 1)}
    assert values(run.step([row(3, 3, "a"), row(3, 4, "b")])) == [("a", 3), ("b", 6)]
    run.step([], watermark=4)
    assert run.state.scan().num_rows == 2
    run.step([], watermark=6)
    assert run.state.scan().num_rows == 0


def test_what_the_function_is_given():
    """Rows of a key together, by arrival; a state for each key, in the keys' order."""
    given_to = []

    def note(state, rows):
        given_to.append((state, rows))
        return None, state.set_column(2, "sum", pa.array([7] * state.num_rows))

    run = operator(note)
    arrived = [row(5, 1), row(3, 2, "y"), row(5, 3), row(3, 4), row(9, 5, None, "z")]
    step, state = one_step(run, arrived)
    (before, rows) = given_to[-1]
    assert rows.schema == ROWS and {c.num_chunks for c in rows.columns} == {1}
    assert rows.column("n").to_pylist() == [1, 3, 4, 2, 5]
    assert before.schema == KEYED_STATE
    keys = [("x", None), ("y", None), (None, "z")]
    assert before.to_pylist() == [{"a": a, "b": b, "sum": None, "rows": None} for a, b in keys]
    state.append(step.delta, None)
    one_step(run, [row(10, 1, "new"), row(10, 1, "y")], state)
    assert given_to[-1][0].column("sum").to_pylist() == [None, 7]
    calls = len(given_to)
    one_step(run, [], state)
    assert len(given_to) == calls, "not called without a row"


def one_step(an_operator, rows, state=None, version=1, before=None, after=None):
    state = MemoryState(an_operator) if state is None else state
    arrived = as_input(rows, an_operator.input_schemas[0])
    return an_operator.step(StepInput((arrived,), before, after, version), state), state


def test_a_key_with_a_date_that_python_lacks_is_named():
    """Failed before: an OverflowError hid what was wrong with a state."""
    days = pa.array([13_890_172], pa.int32()).cast(pa.date32())
    rows = pa.schema([("day", days.type), ("n", pa.int64())])
    of_days = StatefulMapInBatches("totals", ("day",), rows, TOTALS, STATE, totals, None, None)
    named = of_days._named(pa.table({"day": days, "sum": [1]}), 0)
    assert named == "day='+40000-01-01'"


def test_keys_that_are_not_returned_keep_their_states():
    def changes_x(state, rows):
        chosen = pc.or_(pc.equal(state.column("a"), "x"), state.column("sum").is_null())
        after = state.set_column(2, "sum", pa.array([rows.num_rows] * state.num_rows))
        return None, after.filter(chosen)

    run = Stepping(operator(changes_x))
    run.step([row(0, 1), row(0, 1, "y")])
    run.step([row(1, 1), row(1, 1, "y"), row(2, 1, "y")])
    assert states(run) == {"x": (3, None), "y": (2, None)}
    assert run.deltas[-1].num_rows == 1, "and are not written again"


def test_the_time_to_live_counts_from_the_last_row_whether_a_state_is_returned_or_not():
    def first_only(state, rows):
        return None, totals(state, rows)[1].filter(state.column("sum").is_null())

    run = Stepping(operator(first_only, ttl=5))
    run.step([row(0, 3)], watermark=0)
    run.step([row(5, 4)], watermark=6)
    assert states(run) == {"x": (3, 1)}
    run.step([], watermark=11)
    assert states(run) == {}


def test_a_key_is_cleared_by_nulls():
    run = Stepping(operator())
    results = run.step([row(0, 1), row(1, 2), row(2, -1), row(3, 5)])
    assert [t for _, t in values(results)] == [1, 3, 5]
    run.step([row(4, -1)])
    assert run.deltas[-1].select(["sum", "rows"]).to_pylist() == [{"sum": None, "rows": None}]
    assert run.state.scan().num_rows == 0
    run.restore(Random(3))
    assert values(run.step([row(5, 7)])) == [("x", 7)]


def test_a_key_cleared_before_it_was_saved_leaves_nothing():
    run = Stepping(operator(lambda state, rows: (None, state)))
    run.step([row(0, 1), row(1, -1)])
    assert run.deltas[-1].num_rows == 0


def test_a_cleared_key_has_no_last_word_but_hides_its_past_for_the_time_to_live():
    run = Stepping(operator(ttl=5, on_evict=farewell))
    run.step([row(0, 1)])
    run.step([row(3, -1)])
    assert states(run) == {"x": (None, None)}
    assert run.complete() == []
    assert run.state.scan().num_rows == 0


def test_evictions_have_a_last_word_in_one_call():
    calls = []

    def last_word(expired, watermarks):
        calls.append((expired.to_pylist(), watermarks.to_pylist()))
        return farewell(expired, watermarks)

    run = operator(ttl=2, on_evict=last_word)
    step, state = one_step(run, [row(0, 1, "a"), row(0, 2, "b"), row(8, 1, "c")], after=2)
    state.append(step.delta, 2)
    assert not calls
    step, _ = one_step(run, [row(1, 7, "d"), row(2, 5, "b")], state, version=2, after=4)
    # b came back; a did not, and d came and is over at once.
    assert values(step.results.to_pylist()) == [("d", 7), ("b", 7), ("d", -4007), ("a", -3001)]
    assert calls == [
        (
            [
                {"a": "d", "b": None, "sum": 7, "rows": 1},
                {"a": "a", "b": None, "sum": 1, "rows": 1},
            ],
            [4, 3],
        )
    ]


def test_at_the_end_each_key_has_the_first_watermark_that_ends_it():
    run = Stepping(operator(ttl=2, on_evict=farewell))
    run.step([row(0, 1, "a"), row(2, 2, "b")], watermark=0)
    assert Counter(values(run.complete())) == Counter([("a", -3001), ("b", -5002)])
    # Also where the last rows come with the end.
    run = Stepping(operator(ttl=2, on_evict=farewell))
    run.step([row(0, 1, "a"), row(2, 2, "b")], watermark=0)
    ended = run.step([row(4, 3, "b")], watermark=FINAL_WATERMARK)
    assert Counter(values(ended)) == Counter([("b", 5), ("a", -3001), ("b", -7005)])


def test_without_a_time_to_live_nothing_is_late_and_with_one_it_is():
    run = Stepping(operator())
    run.step([row(0, 1)], watermark=100)
    assert values(run.step([row(5, 1)])) == [("x", 2)]
    assert run.late == 0 and run.complete() == []
    run = Stepping(operator(ttl=50))
    run.step([row(10, 1)], watermark=10)
    assert values(run.step([row(9, 1), row(10, 1)])) == [("x", 2)]
    assert run.late == 1


def test_all_rows_may_be_of_one_state():
    def count(state, rows):
        total = (state.column("sum")[0].as_py() or 0) + rows.num_rows
        return None, pa.table({"sum": [total], "rows": pa.array([1], pa.int32())})

    run = Stepping(operator(count, keys=()))
    run.step([row(0, 1, "x", hash_of=colliding), row(1, 1, "y", hash_of=colliding)])
    run.step([row(2, 1, "z", hash_of=colliding)])
    assert run.state.scan().column("sum").to_pylist() == [3]


def returning(results=None, changed=None):
    return lambda state, rows: (results, changed)


STRINGS = pa.array(["x"]), pa.array([None], pa.string())
GOOD = {"a": STRINGS[0], "b": STRINGS[1], "total": [1]}
KEPT = {"a": STRINGS[0], "b": STRINGS[1], "sum": [1], "rows": pa.array([1], pa.int32())}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda state, rows: rows, "returned a Table, expected two tables (or None): results, ch"),
        (lambda state, rows: None, "returned a NoneType, expected two tables"),
        (returning([1]), "returned results as a list, expected a pyarrow.Table or None. Convert"),
        (
            returning(pa.table({"a": ["x"], "total": [1]})),
            "returned results with the columns a, total, expected a, b, total. Return exactly "
            "these columns, or change output_schema.",
        ),
        (
            returning(pa.table({**GOOD, "more": [1]})),
            "results with the columns a, b, total, more, expected a, b, total.",
        ),
        (
            returning(pa.table({**GOOD, "total": ["1"]})),
            "results whose column 'total' is string, expected int64. Cast it in the function, or "
            "change output_schema.",
        ),
        (returning(pa.table({**GOOD, "total": [1.0]})), "'total' is double, expected int64."),
        (returning(pa.table({**GOOD, "b": [b"y"]})), "'b' is binary, expected string."),
        (
            returning(None, pa.table({**KEPT, "rows": [2**40]})),
            "states whose column 'rows' is int64, expected int32 (Integer value 1099511627776 not "
            "in range",
        ),
        (
            returning(None, pa.table({**KEPT, "sum": [1.5]})),
            "states whose column 'sum' is double, expected int64. Cast it in the function, or "
            "change keys and state_schema.",
        ),
        (
            returning(None, pa.table({"sum": [1], "rows": [1]})),
            "states with the columns sum, rows, expected a, b, sum, rows.",
        ),
        (
            returning(None, pa.table({**KEPT, "a": ["y"]})),
            "a state of a='y', b=None, which has no row in this call.",
        ),
        (
            returning(None, pa.concat_tables([pa.table(KEPT)] * 3)),
            "3 states of a='x', b=None. Return one row per key",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(function, message):
    with pytest.raises(UserFunctionError) as caught:
        one_step(operator(function), [row(0, 1)])
    assert caught.value.stage == "totals" and caught.value.cure
    assert "<lambda> returned " in str(caught.value)
    assert message in str(caught.value)


def test_a_state_column_that_must_not_be_null():
    strict = pa.schema([pa.field("sum", pa.int64(), nullable=False), ("rows", pa.int32())])
    null = {**KEPT, "sum": pa.array([None], pa.int64())}
    run = operator(returning(None, pa.table(null)), state=strict)
    with pytest.raises(UserFunctionError, match=r"'sum' is null in 1 rows.*NOT NULL out of state_"):
        one_step(run, [row(0, 1)])
    clears = operator(lambda state, rows: (None, state), state=strict)
    step, _ = one_step(clears, [row(0, 1)])
    assert step.delta.num_rows == 0


def test_a_result_column_that_must_not_be_null():
    strict = pa.schema([pa.field("a", pa.string(), nullable=False)])
    run = operator(returning(pa.table({"a": pa.array([None], pa.string())})), output=strict)
    with pytest.raises(UserFunctionError, match="'a' is null in 1 rows, expected a value in each"):
        one_step(run, [row(0, 1)])


LISTS = pa.list_(pa.struct([("n", pa.int64())]))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.array(["v"], pa.large_string()), pa.string()),
        (pa.array(["v"]).dictionary_encode(), pa.string()),
        (pa.array(["v"], pa.string_view()), pa.string()),
        (pa.array([7], pa.int8()), pa.int64()),
        (pa.array([7]), pa.int16()),
        (pa.array([7]), pa.float64()),
        (pa.array([0.5], pa.float32()), pa.float64()),
        (pa.array([0.1, None, float("inf")]), pa.float32()),
        (pa.array([None]), pa.date32()),
        (pa.array([5], pa.timestamp("ms", tz="UTC")), pa.timestamp("us", tz="UTC")),
        (pa.array([[{"n": 1}]], pa.large_list(pa.struct([("n", pa.int32())]))), LISTS),
    ],
    ids=str,
)
def test_other_widths_of_one_kind_are_taken(found, expected):
    output = pa.schema([("v", expected)])
    step, _ = one_step(operator(returning(pa.table({"v": found})), output=output), [row(0, 1)])
    assert step.results.schema == output
    assert step.results.column("v").to_pylist() == found.cast(expected).to_pylist()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.array(["7"]), pa.int64()),
        (pa.array([True]), pa.int64()),
        (pa.array([5]), pa.timestamp("us", tz="UTC")),
        (pa.array([5], pa.timestamp("us")), pa.timestamp("us", tz="UTC")),
        (pa.array([["7"]]), pa.list_(pa.int64())),
        (pa.array([{"m": 7}]), pa.struct([("n", pa.int64())])),
        (pa.array([2**60 + 1]), pa.float64()),
        (pa.array([1e300]), pa.float32()),
    ],
    ids=str,
)
def test_other_kinds_are_not_cast(found, expected):
    run = operator(returning(pa.table({"v": found})), output=pa.schema([("v", expected)]))
    said = re.escape(f"'v' is {found.type}, expected {expected}")
    with pytest.raises(UserFunctionError, match=said):
        one_step(run, [row(0, 1)])


def test_a_record_batch_is_a_table_too_and_columns_go_by_name():
    turned = pa.record_batch({name: pa.array(GOOD[name]) for name in ("total", "b", "a")})
    step, _ = one_step(operator(returning(turned)), [row(0, 1)])
    assert step.results.to_pylist() == [{"a": "x", "b": None, "total": 1}]


def test_keys_are_equal_as_in_spark():
    """NaN is NaN, and -0.0 is 0.0, whichever of them the function returns."""
    rows = pa.schema([("k", pa.float64()), ("n", pa.int64())])
    state = pa.schema([("sum", pa.int64())])

    def other_bits(given_states, given_rows):
        keys = [0.0, -float("nan")][: given_states.num_rows]
        return None, pa.table({"k": keys, "sum": [5] * len(keys)})

    run = StatefulMapInBatches("s", ("k",), rows, rows, state, other_bits)
    arrived = [addressed(0, {"k": k}, colliding, n=1) for k in (-0.0, float("nan"))]
    step, _ = one_step(run, arrived)
    assert step.delta.num_rows == 2


def test_what_a_function_raises_names_the_stage_and_how_much_it_was_given():
    def raises(state, rows):
        raise ValueError("no\nsuch luck")

    with pytest.raises(UserFunctionError) as caught:
        one_step(operator(raises), [row(0, 1), row(1, 1), row(1, 1, "y")])
    assert caught.value.stage == "totals"
    assert "raises raised ValueError: no such luck. It was given 3 rows of 2 keys." in str(
        caught.value
    )


def test_an_eviction_that_raises_or_returns_something_else():
    for on_evict, said in (
        (lambda states, watermarks: 1 / 0, "ZeroDivisionError.* It was given 1 expired states"),
        (lambda states, watermarks: states, "results with the columns a, b, sum, rows, expected"),
    ):
        run = operator(ttl=1, on_evict=on_evict)
        with pytest.raises(UserFunctionError, match=said):
            one_step(run, [row(0, 1)], after=10)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output": pa.schema([])}, "output_schema has no columns"),
        ({"state": pa.schema([])}, "state_schema has no columns"),
        ({"state": pa.schema([("a", pa.int64())])}, "a cannot be a column of state_schema"),
        ({"state": pa.schema([("__time", pa.int64())])}, "__time cannot be a column of state_sc"),
        ({"state": pa.schema([("s", pa.int64())] * 2)}, "s cannot be a column of state_schema"),
    ],
)
def test_schemas_that_cannot_be_are_refused_when_planned(changes, said):
    with pytest.raises(PipelineError, match=f"stage 'totals': {said}"):
        operator(**changes)


class Shards:
    """An operator on several shards, each with the state of its partitions."""

    def __init__(self, an_operator, count):
        self.operator, self.watermark, self.version, self.late = an_operator, None, 0, 0
        self.states = [MemoryState(an_operator) for _ in range(count)]

    def step(self, rows, watermark):
        self.version += 1
        results = []
        for shard, state in enumerate(self.states):
            mine = [r for r in rows if r[PARTITION_COLUMN] % len(self.states) == shard]
            done, _ = one_step(self.operator, mine, state, self.version, self.watermark, watermark)
            state.append(done.delta, watermark)
            results += done.results.to_pylist()
            self.late += done.late
        self.watermark = watermark
        return results

    def rescale(self, count):
        everything = self.scan()
        partitions = everything.column(PARTITION_COLUMN).to_numpy()
        self.states = [MemoryState(self.operator) for _ in range(count)]
        for shard, state in enumerate(self.states):
            state.append(everything.filter(pa.array(partitions % count == shard)), self.watermark)

    def scan(self):
        return self.operator.merge([state.scan() for state in self.states])


names = st.sampled_from([None, "x", "y"])
events = st.lists(st.tuples(st.integers(0, 50), st.integers(-1, 3), names, names), max_size=10)


@given(
    steps=st.lists(st.tuples(events, st.integers(0, 12), st.sampled_from([0, 1, 3])), max_size=8),
    ttl=st.sampled_from([None, 0, 4, 20]),
    hash_of=st.sampled_from([key_hash, colliding]),
    notified=st.booleans(),
)
def test_as_the_form_per_row_over_shards_and_rescales(steps, ttl, hash_of, notified):
    notified = notified and ttl is not None
    per_row = Shards(by_row(ttl, farewell_by_row if notified else None), 1)
    batches = Shards(operator(ttl=ttl, on_evict=farewell if notified else None), 2)
    watermark = 0
    for batch, advance, rescaled in steps:
        rows = [row(t, n, a, b, hash_of) for t, n, a, b in batch]
        watermark += advance
        assert multiset(batches.step(rows, watermark)) == multiset(per_row.step(rows, watermark))
        assert batches.late == per_row.late
        assert touched(batches) == touched(per_row)
        assert kept(batches) == kept(per_row)
        if rescaled:
            batches.rescale(rescaled)
    assert multiset(batches.step([], FINAL_WATERMARK)) == multiset(
        per_row.step([], FINAL_WATERMARK)
    )
    if ttl is not None:
        assert batches.scan().num_rows == 0


def multiset(rows):
    return Counter(tuple(r.values()) for r in rows)


def touched(shards):
    """Times of all keys, also of those without a state: with a time to live the time counts for
    their next row."""
    return Counter(zip(*(shards.scan()[c].to_pylist() for c in ("a", "b", "__time")), strict=True))


def kept(shards):
    """Living keys with their states, of either operator."""
    state = shards.scan()
    if "__state" in state.column_names:
        rows = state.filter(state.column("__state").is_valid()).to_pylist()
        return Counter(
            (r["a"], r["b"], saved_value.load(r["__state"], StateFormat.PLAIN)) for r in rows
        )
    rows = state.filter(pa.array(shards.operator._has_state(state))).to_pylist()
    return Counter((r["a"], r["b"], (r["sum"], r["rows"])) for r in rows)


@given(steps=st.lists(st.tuples(events, st.integers(0, 12), st.booleans()), max_size=6))
def test_its_contract_over_restores(steps):
    """`Stepping` takes each step twice, and puts the state together from deltas in any order."""
    run, plain, watermark = Stepping(operator(ttl=9)), Shards(by_row(9), 1), 0
    for batch, advance, restored in steps:
        rows = [row(t, n, a, b) for t, n, a, b in batch]
        watermark += advance
        found = run.step(rows, watermark=watermark)
        assert multiset(found) == multiset(plain.step(rows, watermark))
        if restored:
            run.restore(Random(watermark))


def test_a_large_step_is_exact():
    """The example of the docs, computed in numpy for many keys and epochs."""
    random, run = np.random.default_rng(5), operator(running_totals)
    state, sums = MemoryState(run), Counter()
    for version in range(1, 5):
        keys, numbers = random.integers(0, 300, 5_000), random.integers(0, 100, 5_000)
        pairs = zip(keys.tolist(), numbers.tolist(), strict=True)
        arrived = [row(t, n, f"k{k}") for t, (k, n) in enumerate(pairs)]
        done, _ = one_step(run, arrived, state, version)
        state.append(done.delta, None)
        expected = []
        for one in arrived:
            sums[one["a"]] += one["n"]
            expected.append((one["a"], None, sums[one["a"]]))
        assert multiset(done.results.to_pylist()) == Counter(expected)


def running_totals(state, rows):
    numbers = rows.column("a").combine_chunks().dictionary_encode().indices.to_numpy()
    values_, sums = rows.column("n").to_numpy(), pc.fill_null(state.column("sum"), 0).to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(starts[1:], len(numbers)) - 1
    running = np.cumsum(values_)
    running += (sums - (running[starts] - values_[starts]))[numbers]
    counts = pc.fill_null(state.column("rows"), 0).to_numpy() + np.diff(starts, append=len(numbers))
    after = state.set_column(2, "sum", pa.array(running[ends]))
    return (
        rows.drop_columns(["n"]).append_column("total", pa.array(running)),
        after.set_column(3, "rows", pa.array(counts)),
    )


def test_the_example_of_the_docs():
    page = Path(dagster_jet.__file__).parents[1] / "docs" / "operators.md"
    (code,) = re.findall(
        r"\n## Whole tables at once\n\n```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL
    )
    p = Pipeline("docs")
    source = sources.files("in", format="json", schema="origin string, delay double")
    exec(code, {"flights": p.read_from(source, name="flights")})
    node = p._builder.nodes["totals"]
    origin, delay = pa.field("origin", pa.string()), pa.field("delay", pa.float64())
    kept = [("n", pa.int64()), ("total", pa.float64())]
    run = Stepping(
        StatefulMapInBatches(
            "totals", ("origin",), pa.schema([origin, delay]), pa.schema([origin, *kept]),
            pa.schema(kept), node.function,
        )
    )  # fmt: skip
    random, sums = Random(8), {}
    for epoch in range(4):
        rows, expected = [], []
        for time in range(50):
            k, v = random.choice(["JFK", "EWR", None]), random.randrange(100) / 4
            rows.append(addressed(100 * epoch + time, {"origin": k}, delay=v))
            n, total_ = sums.get(k, (0, 0.0))
            sums[k] = n + 1, total_ + v
            expected.append((k, *sums[k]))
        assert multiset(run.step(rows)) == Counter(expected)
