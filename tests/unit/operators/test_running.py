"""`running` and `match`: the same however rows are divided into steps, compared with lists."""

from decimal import Decimal
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.saved_schema import in_state_schema
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.user.pattern import Pattern
from dagster_jet.operators.user.running import Call, Running
from dagster_jet.operators.user.state import State
from tests.unit.operators.stepping import Stepping, addressed

LONG = pa.int64()
ROWS = pa.schema([("k", pa.string()), ("v", LONG), ("at", LONG)])
CALLS = {
    "before": Call("lag", "v"),
    "second": Call("lag", "v", 2),
    "after": Call("lead", "v"),
    "total": Call("sum", "v"),
    "n": Call("count", "v"),
    "rows": Call("count", "*"),
    "low": Call("min", "v"),
    "first": Call("first", "v"),
    "last": Call("last", "v"),
}
WITH_CALLS = pa.schema([*ROWS, *((name, LONG) for name in CALLS)])
ROW = pa.schema([("at", LONG), ("meets", pa.string())])
MARKED = pa.schema(
    [("k", pa.string()), ("at", LONG), ("__row", pa.struct(ROW)), ("__meets", pa.list_(pa.bool_()))]
)
FOUND = pa.schema([("k", pa.string()), ("at", LONG), ("a", pa.struct(ROW)), ("b", pa.struct(ROW))])
TTL = WITHIN = 9


def running():
    function = Running(tuple(CALLS.items()))
    evicts = function.without_next
    return StatefulMap("s", ("k",), ROWS, WITH_CALLS, function, dict, TTL, evicts)


def pattern():
    function = Pattern(("k",), "at", ("a", "b"), WITHIN)
    return StatefulMap("s", ("k",), MARKED, FOUND, function, list, WITHIN)


def with_values(rows):
    """Expected values, by an SQL window over each life of each key."""
    lives = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        mine = lives.setdefault(row["k"], [])
        if not mine or row["at"] > mine[-1][-1]["at"] + TTL:
            mine.append([])
        mine[-1].append(row)
    for life in (life for mine in lives.values() for life in mine):
        values = [row["v"] for row in life]
        for n, row in enumerate(life):
            known = [value for value in values[: n + 1] if value is not None]
            yield {
                **{name: row[name] for name in ROWS.names},
                "before": values[n - 1] if n else None,
                "second": values[n - 2] if n > 1 else None,
                "after": values[n + 1] if n + 1 < len(values) else None,
                "total": sum(known) if known else None,
                "n": len(known),
                "rows": n + 1,
                "low": min(known, default=None),
                "first": known[0] if known else None,
                "last": known[-1] if known else None,
            }


def matches(rows):
    """Looks from each `a` forwards."""
    ordered = sorted(rows, key=lambda row: row["at"])
    for n, first in enumerate(ordered):
        meets = first["__row"]["meets"]
        if "a" not in meets or "u" in meets:
            continue
        for row in (one for one in ordered[n + 1 :] if one["k"] == first["k"]):
            if "u" in row["__row"]["meets"] or row["at"] > first["at"] + WITHIN:
                break
            if "b" in row["__row"]["meets"]:
                yield {"k": row["k"], "at": row["at"], "a": first["__row"], "b": row["__row"]}
                break


def valued(at, v, k):
    return addressed(at, {"k": k}, key_hash, v=None if v == 3 else v, at=at)


def marked(at, v, k):
    meets = ("a", "b", "", "ab", "u", "au")[v]
    row = {"at": at, "meets": meets}
    return addressed(at, {"k": k}, key_hash, at=at, __row=row, __meets=[x in meets for x in "abu"])


@given(
    arrived=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 5), st.sampled_from([None, "x", "y"])),
        max_size=16,
    ),
    cuts=st.lists(st.integers(0, 16), max_size=5),
    advances=st.lists(st.integers(0, 90), min_size=6, max_size=6),
    case=st.sampled_from([(running, valued, with_values), (pattern, marked, matches)]),
    seed=st.integers(0, 2**16),
)
def test_however_rows_are_divided_into_steps(arrived, cuts, advances, case, seed):
    operator, row_of, expected = case
    every = [row_of(*one) for one in arrived]
    divided, random, found = Stepping(InEventOrder(operator())), Random(seed), []
    bounds = [0, *sorted(min(cut, len(every)) for cut in cuts), len(every)]
    for (begin, end), advance in zip(pairwise(bounds), advances, strict=False):
        earliest = min((r["at"] for r in every[end:]), default=200)  # no later row is late
        watermark = max(divided.watermark or 0, min(advance, earliest))
        found += divided.step(every[begin:end], watermark=watermark)
        if random.random() < 0.5:
            divided.restore(random)
    found += divided.complete()
    assert sorted(map(repr, found)) == sorted(map(repr, expected(every)))


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        ("sum", [Decimal("12345678901234567890123456789012.34"), Decimal("0.01")],
         Decimal("12345678901234567890123456789012.35")),
        ("max", [1.0, float("nan"), 2.0], float("nan")),
        ("min", [float("nan"), 2.0, float("nan"), 1.0], 1.0),
        ("avg", [1, None, 2], 1.5),
    ],
)  # fmt: skip
def test_values_are_those_of_sql(function, values, expected):
    state, running = State({}), Running((("x", Call(function, "v")),))
    found = [running(state, {"v": value})["x"] for value in values]
    assert repr(found[-1]) == repr(expected)


def test_lead_that_is_added_to_saved_states():
    """The rows before the change have come out: none of them waits."""
    before = Running((("n", Call("count", "*")),))
    after = Running((*before.calls, ("next", Call("lead", "v"))))
    run = Stepping(InEventOrder(counting(before)))
    assert len(run.step([valued(1, 1, "x"), valued(1, 1, "y")], watermark=2)) == 2
    run.operator = InEventOrder(counting(after))
    run.restore(Random(1))
    assert run.step([valued(3, 7, "y")], watermark=4) == []
    assert run.step([], watermark=11) == [], "the state of x expires"
    assert [(row["v"], row["n"], row["next"]) for row in run.complete()] == [(7, 2, None)]


def counting(function):
    output = pa.schema([*ROWS, *((name, LONG) for name, _ in function.calls)])
    evicts = function.without_next if len(function.calls) > 1 else None
    return StatefulMap("s", ("k",), ROWS, output, function, dict, TTL, evicts)


def matching(row):
    """`match` over rows of these columns, as it is planned."""
    schema = MARKED.set(2, pa.field("__row", pa.struct(row)))
    found = pa.schema([*FOUND][:2] + [pa.field(step, pa.struct(row)) for step in "ab"])
    function = Pattern(("k",), "at", ("a", "b"), WITHIN, tuple(row.names))
    return InEventOrder(StatefulMap("s", ("k",), schema, found, function, list, WITHIN))


def test_rows_of_an_open_match_come_out_with_the_columns_of_now():
    now = pa.schema([("at", LONG), ("meets", pa.string()), ("more", LONG)])
    older = pa.schema([("at", LONG), ("meets", pa.string()), ("less", LONG)])
    run = Stepping(matching(older))
    first = {**marked(1, 0, "x"), "__row": {"at": 1, "meets": "a", "less": 1}}
    assert run.step([first], watermark=2) == []
    run.operator = matching(now)
    run.deltas = [in_state_schema(delta, run.operator, "s") for delta in run.deltas]
    run.restore(Random(1))
    second = {**marked(3, 1, "x"), "__row": {"at": 3, "meets": "b", "more": 3}}
    (found,) = run.step([second], watermark=4)
    assert found["a"] == {"at": 1, "meets": "a", "more": None}
    assert found["b"] == {"at": 3, "meets": "b", "more": 3}
