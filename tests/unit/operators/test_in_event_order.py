"""`InEventOrder`: the results of a function with state do not depend on how rows are divided."""

from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag import ItemProcessor, snapshot_emitter
from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.operators.in_event_order import ROW_COLUMN, InEventOrder
from dagster_jet.operators.operator import MemoryState
from dagster_jet.operators.saved_rows import living_rows
from dagster_jet.operators.saved_schema import in_state_schema, saved_columns
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user import saved_value
from dagster_jet.operators.user.spark_processor import SparkProcessor
from tests.unit.operators.stepping import PARTITIONS, Stepping, addressed, as_multiset, colliding

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
SEEN = pa.schema([("k", pa.string()), ("seen", pa.string())])
STATE = pa.schema([("seen", pa.string())])


def remember(state, row):
    """The order of all rows of the key is in the state, and in each result."""
    if row["n"] < 0:
        raise ValueError("negative")
    state.value += f"{row['n']},"
    if row["n"] == 0:
        state.clear()
        return {"k": row["k"], "seen": "cleared"}
    return {"k": row["k"], "seen": state.value}


def farewell(key, value, watermark_ms):
    return {**key, "seen": f"{value} until {watermark_ms}"}


def remember_in_batches(states, rows):
    seen = {s["k"]: s["seen"] or "" for s in states.to_pylist()}
    results = []
    for row in rows.to_pylist():
        seen[row["k"]] += f"{row['n']},"
        said = "cleared" if row["n"] == 0 else seen[row["k"]]
        results.append({"k": row["k"], "seen": said})
        if row["n"] == 0:
            seen[row["k"]] = ""
    changed = [{"k": key, "seen": value or None} for key, value in seen.items()]
    return pa.Table.from_pylist(results, SEEN), pa.Table.from_pylist(changed, SEEN)


def farewell_in_batches(states, watermarks):
    told = zip(states.to_pylist(), watermarks.to_pylist(), strict=True)
    return pa.Table.from_pylist(
        [{"k": s["k"], "seen": f"{s['seen']} until {w}"} for s, w in told], SEEN
    )


def per_row(ttl=None, on_evict=farewell, **options):
    evicts = None if ttl is None else on_evict
    return StatefulMap("s", ("k",), ROWS, SEEN, remember, str, ttl, evicts, **options)


def with_dead_letters(ttl):
    return per_row(ttl, keeps_dead_letters=True)


def by_arrival(operator):
    return operator


def in_batches(ttl=None):
    evicts = None if ttl is None else farewell_in_batches
    return StatefulMapInBatches("s", ("k",), ROWS, SEEN, STATE, remember_in_batches, ttl, evicts)


class Remembering(ItemProcessor):
    """Processor like `remember`, without an end."""

    def init(self, outbox, context):
        super().init(outbox, context)
        self.seen = {}
        self.saving = snapshot_emitter(outbox.offer_to_snapshot)

    def process_item(self, ordinal, item):
        seen = self.seen.get(item["k"], "") + f"{item['n']},"
        if not self.outbox.offer({"k": item["k"], "seen": seen}):
            return False
        self.seen[item["k"]] = seen
        return True

    def save_to_snapshot(self):
        return self.saving.emit(lambda: list(self.seen.items()))

    def restore_from_snapshot(self, inbox):
        self.seen.update(inbox.drain())
        return True


def processor(ttl=None):
    return SparkProcessor("s", Remembering, ROWS, SEEN, ("k",), False, PARTITIONS)


def row(time, n, k="x", hash_of=key_hash):
    return addressed(time, {"k": k}, hash_of, n=n)


@pytest.mark.parametrize("operator_of", [per_row, processor])
def test_the_issues_prices_in_one_step_and_in_three(operator_of):
    """Prices at 0, 20, 10 s."""
    results = []
    for cuts in ([[0, 20, 10]], [[0], [20], [10]]):
        run = Stepping(InEventOrder(operator_of()))
        found = [one for cut in cuts for one in run.step([row(t, t + 1) for t in cut])]
        assert found == []
        results.append([r["seen"] for r in run.complete()])
    assert results == [["1,", "1,11,", "1,11,21,"]] * 2


def test_a_row_waits_until_the_watermark_is_past_it():
    run = Stepping(InEventOrder(per_row()))
    assert run.step([row(5, 1), row(3, 2)], watermark=3) == []
    assert run.step([row(3, 3)], watermark=4) == [
        {"k": "x", "seen": "2,"},
        {"k": "x", "seen": "2,3,"},
    ]
    assert run.step([row(3, 4)], watermark=6) == [{"k": "x", "seen": "2,3,1,"}]
    assert run.late == 1


def test_entries_of_a_processor_are_seen_beside_the_rows_that_wait():
    run = Stepping(InEventOrder(processor()))
    for watermark in (3, 5):
        run.step([row(watermark - 1, 1), row(9, 2, "y")], watermark=watermark)
    living = living_rows(run.state.scan(), {"keys": ["k"], "kind": "processor"}, 4).to_pylist()
    kept = [
        saved_value.load(one["__value"], StateFormat.PLAIN)
        for one in living
        if one["__row"] is None
    ]
    assert kept == ["1,1,"] and len(living) == 3


def test_waiting_rows_are_seen_beside_the_states():
    run = Stepping(InEventOrder(per_row()))
    run.step([row(1, 1), row(9, 2)], watermark=3)
    living = living_rows(run.state.scan(), {"keys": ["k"]}, 2).to_pylist()
    assert [(one["k"], one["__row"]) for one in living] == [("x", None), ("x", {"k": "x", "n": 2})]


names = st.sampled_from([None, "x", "y"])
rows = st.lists(st.tuples(st.integers(0, 60), st.integers(-1, 3), names), max_size=14)


@given(
    arrived=rows,
    cuts=st.lists(st.integers(0, 14), max_size=5),
    advances=st.lists(st.integers(0, 80), min_size=6, max_size=6),
    ttl=st.sampled_from([None, 0, 4, 20]),
    operator_of=st.sampled_from([per_row, with_dead_letters, in_batches, processor]),
    order=st.sampled_from([InEventOrder, by_arrival]),
    hash_of=st.sampled_from([key_hash, colliding]),
    seed=st.integers(0, 2**16),
)
def test_however_rows_are_divided_into_steps(
    arrived, cuts, advances, ttl, operator_of, order, hash_of, seed
):
    is_bad_allowed = operator_of is with_dead_letters
    every = [row(t, n if is_bad_allowed else abs(n), k, hash_of) for t, n, k in arrived]
    whole = Stepping(order(operator_of(ttl)))
    expected = whole.step(every) + whole.complete()

    divided, random, found = Stepping(order(operator_of(ttl))), Random(seed), []
    bounds = [0, *sorted(min(cut, len(every)) for cut in cuts), len(every)]
    for (begin, end), advance in zip(pairwise(bounds), advances, strict=False):
        earliest = min((r["__time"] for r in every[end:]), default=200)  # no later row is late
        watermark = max(divided.watermark or 0, min(advance, earliest))
        found += divided.step(every[begin:end], watermark=watermark)
        if random.random() < 0.5:
            divided.restore(random)
    found += divided.complete()
    assert divided.late == whole.late == 0
    for key in (None, "x", "y"):
        ours, theirs = ([r for r in side if r["k"] == key] for side in (found, expected))
        assert ours == theirs, "in the order of the key's rows"
    assert as_multiset(divided.rejected) == as_multiset(whole.rejected)


def with_ttl(run, operator):
    """The run goes on from its snapshot with another time to live."""
    saved, expired = run.state.scan(), run.operator.expired_until(run.watermark)
    run.operator = operator
    run.state = MemoryState(operator)
    run.state.append(operator.with_expiry(in_state_schema(saved, operator, "s"), expired), None)


@pytest.mark.parametrize("operator_of", [per_row, with_dead_letters, in_batches])
def test_another_time_to_live_counts_from_the_last_touch(operator_of):
    def seen(results):
        return [result["seen"] for result in results]

    shorter = Stepping(InEventOrder(operator_of(20)))
    shorter.step([row(0, 1), row(6, 2, "y")], watermark=10)
    with_ttl(shorter, InEventOrder(operator_of(4)))
    assert seen(shorter.step([], watermark=10)) == []
    assert seen(shorter.step([], watermark=11)) == ["1, until 5", "2, until 11"]

    touched = Stepping(InEventOrder(operator_of(20)))
    touched.step([row(0, 1), row(4, 2)], watermark=2)
    with_ttl(touched, InEventOrder(operator_of(5)))
    assert seen(touched.step([row(12, 3)], watermark=13)) == ["1,2,", "1,2, until 10", "3,"]

    longer = Stepping(InEventOrder(operator_of(4)))
    longer.step([row(0, 1)], watermark=3)
    with_ttl(longer, InEventOrder(operator_of(20)))
    assert seen(longer.step([row(15, 2)], watermark=16)) == ["1,2,"]
    assert seen(longer.complete()) == ["1,2, until 36"]


MORE = pa.schema([*ROWS, ("more", pa.float64())])


def test_a_column_that_the_stream_has_now_is_null_in_rows_that_waited():
    run = Stepping(InEventOrder(per_row()))
    run.step([row(7, 1)])
    saved = run.state.scan()
    wider = InEventOrder(StatefulMap("s", ("k",), MORE, SEEN, remember, str))
    assert saved_columns(wider) == saved_columns(run.operator)
    (waiting,) = in_state_schema(saved, wider, "s").column(ROW_COLUMN).to_pylist()
    assert waiting == {"k": "x", "n": 1, "more": None}
    text = pa.schema([("k", pa.string()), ("n", pa.string())])
    other = InEventOrder(StatefulMap("s", ("k",), text, SEEN, remember, str))
    with pytest.raises(SnapshotInvalidError, match="'n' as int64, it is string now"):
        in_state_schema(saved, other, "s")
