"""State that was saved under other types is refused: a key would have another hash by now."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.saved_schema import in_state_schema, saved_columns
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user.pattern import ROW, Pattern
from dagster_jet.operators.user.running import Call, Running
from dagster_jet.pipeline import aggregates as agg
from dagster_jet.snapshot.plan import compare_plans
from tests.unit.operators.frame_stage import FrameStage

COUNTS = FrameStage(10, 10, total=agg.sum("v"), n=agg.count(), top=agg.top_n(2, "s")).operator


def kept(kind: pa.DataType) -> Deduplicate:
    return Deduplicate(("k",), pa.schema([("k", kind)]), within_ms=10)


def state(operator, **columns):
    """One row of its state; of other types where `columns` says so."""
    made = {
        field.name: columns.get(field.name, pa.array([None], field.type))
        for field in operator.state_schema
    }
    return pa.table({**made, **columns})


def test_state_of_the_same_schema_is_taken_as_it_is():
    for operator in (COUNTS, kept(pa.string())):
        table = state(operator)
        assert in_state_schema(table, operator, "s").equals(table.cast(operator.state_schema))


def test_whether_values_may_be_null_may_have_changed():
    """`coalesce` before a stage makes its key one that is never null; lists have it inside."""
    never = pa.schema([pa.field("k", pa.string(), nullable=False)])
    operator = Deduplicate(("k",), never, within_ms=10)
    found = in_state_schema(state(kept(pa.string()), k=pa.array(["a"])), operator, "s")
    assert found.schema == operator.state_schema
    back = in_state_schema(found, kept(pa.string()), "s")
    assert back.schema == kept(pa.string()).state_schema
    (name,) = [name for name in COUNTS.state_schema.names if name.startswith("__top")]
    fields = [pa.field(part, pa.string()) for part in ("rank", "value")]
    tops = pa.array([[{"rank": "a", "value": "b"}]], pa.list_(pa.field("item", pa.struct(fields))))
    found = in_state_schema(state(COUNTS, **{name: tops}), COUNTS, "s")
    assert found.schema == COUNTS.state_schema
    assert found.column(name).to_pylist() == tops.to_pylist()


def test_a_partial_of_another_type_is_refused():
    for other in (pa.array([7.0]), pa.array(["seven"]), pa.array([[7]])):
        with pytest.raises(SnapshotInvalidError, match=r"stage 's': .* '__sum\(v\)' as .* int64"):
            in_state_schema(state(COUNTS, **{"__sum(v)": other}), COUNTS, "s")


@pytest.mark.parametrize("kind", [pa.int64(), pa.binary(), pa.large_string()])
def test_a_key_of_another_type_is_refused(kind):
    with pytest.raises(SnapshotInvalidError, match=r"has 'k' as string, it is .* now\. Undo th"):
        in_state_schema(state(kept(pa.string()), k=pa.array(["7"])), kept(kind), "s")


def test_a_column_that_was_not_saved_is_refused_and_one_that_is_not_needed_is_left_out():
    table = state(COUNTS)
    with pytest.raises(SnapshotInvalidError, match="has no column 'k', which it needs now"):
        in_state_schema(table.drop_columns(["k"]), COUNTS, "s")
    more = table.append_column("__max(v)", pa.array([1]))
    assert in_state_schema(more, COUNTS, "s").column_names == COUNTS.state_schema.names


def whole_rows(*names):
    """Deduplicates by all columns."""
    return Deduplicate(names, pa.schema([(name, pa.string()) for name in names]), within_ms=10)


def joined(left="a", right="b", *, suffix="", kind=None, how="left"):
    """Each letter is a column of its side."""
    kind = kind or pa.int64()
    left, right = (
        pa.schema([(name + ending, kind) for name in names])
        for names, ending in ((left, ""), (right, suffix))
    )
    return IntervalJoin(pa.schema([("k", pa.string())]), left, right, (-10, 10), how)


def mapped(kind):
    rows = pa.schema([("k", kind), ("v", pa.int64())])
    return StatefulMap("s", ("k",), rows, rows, lambda state, row: row, int)


def in_batches(key="k", **columns):
    """A function over tables with these columns of state."""
    rows = pa.schema([(key, pa.string())])
    kept = pa.schema(list(columns.items()))
    return StatefulMapInBatches("s", (key,), rows, rows, kept, lambda state, rows: (rows, state))


LISTS = pa.list_(pa.field("element", pa.struct([pa.field("n", pa.int64(), nullable=False)])))
SAME_LISTS = pa.list_(pa.field("item", pa.struct([pa.field("n", pa.int64())]), nullable=False))
CHANGES = {
    "nothing": (joined(), joined(), ""),
    "within": (joined(), replace(joined(), between_ms=(-99, 99)), ""),
    "null": (joined(kind=LISTS), joined(kind=SAME_LISTS), ""),
    "joined no more": (joined("ac", "bd"), joined("a", "b"), ""),
    "suffix": (joined(suffix="_right"), joined(suffix="_other"), "has no column 'b_other'"),
    "joined too": (joined(), joined("ac"), "has no column 'c'"),
    "type": (joined(), joined(kind=pa.float64()), "has 'a' as int64, it is double now"),
    "list": (
        joined(kind=pa.list_(pa.int64())),
        joined(kind=LISTS),
        "has 'a' as list<int64>, it is list<struct<n: int64>> now",
    ),
    "key": (mapped(pa.string()), mapped(pa.binary()), "has 'k' as string, it is binary now"),
    "state less": (in_batches(n=pa.int64(), m=pa.int64()), in_batches(m=pa.int64()), ""),
    "state more": (
        in_batches(n=pa.int64()),
        in_batches(n=pa.int64(), m=pa.int64()),
        "has no column 'm', which it needs now",
    ),
    "state type": (
        in_batches(n=pa.int64()),
        in_batches(n=pa.float64()),
        "has 'n' as int64, it is double now",
    ),
    "per row": (mapped(pa.string()), in_batches(n=pa.int64()), "has no column 'n'"),
    "column less": (whole_rows("k", "v"), whole_rows("k"), "has the keys ['k', 'v'], they are"),
    "column more": (whole_rows("k"), whole_rows("k", "v"), "has the keys ['k'], they are ['k', 'v"),
    "order": (whole_rows("k", "v"), whole_rows("v", "k"), "['k', 'v'], they are ['v', 'k'] now"),
}


@pytest.mark.parametrize(("before", "after", "reason"), CHANGES.values(), ids=CHANGES)
def test_what_the_plan_refuses_is_what_the_restore_would_refuse(before, after, reason):
    (change,) = compare_plans(plan_of(before), plan_of(after))
    assert change.is_refused == bool(reason)
    assert reason in change.reason
    rows = before.state_schema.empty_table()
    if reason:
        with pytest.raises(SnapshotInvalidError, match="stage 's': the state in the last snapshot"):
            in_state_schema(rows, after, "s")
    else:
        assert in_state_schema(rows, after, "s").schema == after.state_schema


def test_a_column_of_the_other_side_is_another_one():
    """The restore reads it by its name: only the plan knows."""
    (change,) = compare_plans(plan_of(joined("ax", "b")), plan_of(joined("a", "bx")))
    assert change.is_refused and "has no column 'x', which it needs now" in change.reason


def test_a_plan_without_columns_says_nothing_about_them():
    bare = {"s": {"kind": "any", "format": 1}}
    for before, after in ((bare, plan_of(joined())), (plan_of(joined()), bare)):
        assert not [c for c in compare_plans(before, after) if c.is_refused]


def plan_of(operator):
    """Plan read back from a manifest."""
    plan = {"s": {"kind": "any", "format": 1, "columns": saved_columns(operator)}}
    return json.loads(json.dumps(plan))


def matched(**columns):
    row = pa.struct(list(columns.items()))
    rows = pa.schema([("k", pa.string()), ("at", pa.int64()), (ROW, row)])
    found = pa.schema([("k", pa.string()), ("at", pa.int64()), ("a", row), ("b", row)])
    function = Pattern(("k",), "at", ("a", "b"), 10, tuple(columns))
    return InEventOrder(StatefulMap("s", ("k",), rows, found, function, list, 10))


def running(kind, call, *, lead=False):
    """A call in order of arrival: no row waits for the watermark."""
    calls = (("x", call), *([("next", Call("lead", "w"))] if lead else []))
    rows = pa.schema([("k", pa.string()), ("w", pa.int64())])
    results = pa.schema([*rows, *((name, kind) for name, _ in calls)])
    function = Running(calls, tuple(results.names))
    evicts = function.without_next if lead else None
    return StatefulMap("s", ("k",), rows, results, function, dict, 10, evicts)


INT, TEXT = pa.int64(), pa.string()
TOTAL, LAST = Call("sum", "v"), Call("last", "v")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (matched(v=INT, w=INT), matched(v=INT), ""),
        (matched(v=INT), matched(v=INT, w=INT), ""),
        (matched(v=INT), matched(v=TEXT), "its state has 'v' as int64, it is string now"),
        (running(INT, LAST), running(TEXT, LAST), "has 'last(v,1)' as int64, it is string now"),
        (running(INT, LAST, lead=True), running(TEXT, TOTAL, lead=True), "has 'x' as int64"),
        (running(INT, LAST), running(TEXT, TOTAL), ""),
    ],
    ids=["less", "more", "type", "value", "waiting", "another value"],
)
def test_rows_and_values_in_the_state_of_match_and_running(before, after, reason):
    (change,) = compare_plans(plan_of(before), plan_of(after))
    assert change.is_refused == bool(reason)
    assert reason in change.reason
    older = plan_of(before)
    older["s"]["columns"].pop("values")  # of a version that did not save it
    assert not [c for c in compare_plans(older, plan_of(after)) if c.is_refused]
