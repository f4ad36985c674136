"""Rows whose timestamps differ only inside a millisecond are in order of these timestamps."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.core.partition import key_hash
from dagster_jet.core.window_frames import Frames
from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.count_windows import CountWindows
from dagster_jet.operators.deduplicate_in_order import DeduplicateInOrder
from dagster_jet.operators.first_stage import (
    FirstStage,
    FramePartials,
    KeyPartials,
    SessionBuckets,
)
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.join_as_of import JoinAsOf
from dagster_jet.operators.operator import HASH_COLUMN, PARTITION_COLUMN, TIME_COLUMN
from dagster_jet.operators.row_input import RowInput
from dagster_jet.operators.saved_schema import in_state_schema
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.user.running import Call, Running
from dagster_jet.operators.window import SlidingWindows
from dagster_jet.pipeline import aggregates as agg
from tests.unit.operators.stepping import Stepping, addressed

AT = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("v", pa.string()), ("at", AT)])
NAMES = {100: "created", 400: "paid", 900: "cancelled"}
"""By microsecond: neither in the order of the texts nor against it."""
ARRIVALS = st.permutations(list(NAMES))
AGGREGATES = {"first": agg.first("v"), "last": agg.last("v"), "all": agg.collect_list("v")}
AGGREGATION = Aggregation(tuple(AGGREGATES.items()))
EXPECTED = {"first": "created", "last": "cancelled", "all": list(NAMES.values())}


def moment(micros: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=micros)


MIDNIGHT_MS = int(moment(0).timestamp()) * 1_000


def row(micros: int, **columns: Any) -> dict[str, Any]:
    return addressed(MIDNIGHT_MS + micros // 1_000, {"k": "x"}, key_hash, **columns)


def named(arrival: Sequence[int]) -> list[dict[str, Any]]:
    return [row(micros, at=moment(micros), v=NAMES[micros]) for micros in arrival]


def first_stages() -> list[FirstStage]:
    return [
        FramePartials(("k",), AGGREGATION, Frames(1_000, 1_000)),
        SessionBuckets(("k",), AGGREGATION, 1),
        KeyPartials(("k",), AGGREGATION),
    ]


def arrived(first_stage: FirstStage, rows: list[dict[str, Any]]) -> pa.Table:
    """Input of the operator, from rows of another stage of the task."""
    address = [(PARTITION_COLUMN, pa.int32()), (HASH_COLUMN, pa.int64()), (TIME_COLUMN, pa.int64())]
    empty = pa.schema([*address, *ROWS]).empty_table()
    schema = first_stage.partials(empty, None, "at")[0].schema
    made = RowInput(schema, first_stage.keys, 7, "at", first_stage=first_stage)
    return made.shape(pa.Table.from_pylist(rows, ROWS), None)[0]


@pytest.mark.parametrize("first_stage", first_stages(), ids=lambda stage: type(stage).__name__)
@given(arrival=ARRIVALS)
def test_aggregates_by_event_time(first_stage: FirstStage, arrival: Sequence[int]) -> None:
    tables = [arrived(first_stage, [one]) for one in named(arrival)]
    merged = AGGREGATION.merge(pa.concat_tables(tables), list(first_stage.keys))
    assert [column.to_pylist() for column in AGGREGATION.finish(merged)] == [
        [value] for value in EXPECTED.values()
    ]


def test_a_state_with_times_in_ms_is_refused() -> None:
    """Earlier versions saved the event times of `first`, `last` and `collect_list` in ms."""
    first_stage = first_stages()[0]
    operators = [
        SlidingWindows(schema, first_stage.keys, Frames(1_000, 1_000), AGGREGATION)
        for schema in (in_ms(arrived(first_stage, [])).schema, arrived(first_stage, []).schema)
    ]
    before, now = operators
    with pytest.raises(SnapshotInvalidError, match=r"'__first\(v\)' as struct<time: int64.*timest"):
        in_state_schema(before.state_schema.empty_table(), now, "s")


def in_ms(table: pa.Table) -> pa.Table:
    time = pa.field("time", pa.int64())
    pair = pa.struct([time, ("value", pa.string())])
    for name in ("__first(v)", "__last(v)", "__list(v)"):
        place = table.schema.get_field_index(name)
        kind = pa.list_(pair) if name == "__list(v)" else pair
        table = table.set_column(place, pa.field(name, kind), pa.nulls(table.num_rows, kind))
    return table


def running() -> StatefulMap:
    function = Running((("before", Call("lag", "v")), ("last", Call("last", "v"))))
    results = pa.schema([*ROWS, ("before", pa.string()), ("last", pa.string())])
    return StatefulMap("s", ("k",), ROWS, results, function, dict)


def counted() -> StatefulMapInBatches:
    function = CountWindows(("k",), len(NAMES), AGGREGATION, "at")
    results, state = function.output_schema(ROWS), function.state_columns(ROWS)
    return StatefulMapInBatches("s", ("k",), ROWS, results, state, function)


@given(arrival=ARRIVALS, cut=st.integers(0, len(NAMES)), seed=st.integers())
def test_functions_get_rows_by_event_time(arrival: Sequence[int], cut: int, seed: int) -> None:
    def results(inner: Any) -> list[dict[str, Any]]:
        run, rows = Stepping(InEventOrder(inner, "at")), named(arrival)
        found = run.step(rows[:cut])
        run.restore(Random(seed))
        return found + run.step(rows[cut:], watermark=MIDNIGHT_MS + 1) + run.complete()

    so_far = zip([None, "created", "paid"], NAMES.values(), strict=True)
    assert [(r["before"], r["last"]) for r in results(running())] == [*so_far]
    (window,) = results(counted())
    assert {name: window[name] for name in EXPECTED} == EXPECTED
    for keep, name in (("first", "created"), ("last", "cancelled")):
        (kept,) = results(DeduplicateInOrder(("k",), ROWS, 10, keep))
        assert kept["v"] == name


MOMENTS = st.integers(0, 30).map(lambda number: 400 * number)
"""Several in a millisecond."""


@given(
    rows=st.lists(MOMENTS, max_size=8),
    versions=st.lists(MOMENTS, max_size=8, unique=True),
    watermarks=st.lists(st.integers(0, 14), min_size=3, max_size=3),
    keep=st.sampled_from([None, 2]),
    seed=st.integers(),
)
def test_a_version_counts_from_its_microsecond_on(
    rows: list[int], versions: list[int], watermarks: list[int], keep: int | None, seed: int
) -> None:
    left, right = pa.schema([("at", AT)]), pa.schema([("rate", pa.int64()), ("since", AT)])
    joins = JoinAsOf.of(
        "s", pa.schema([("k", pa.string())]), left, right, keep_ms=keep, times=("at", "since")
    )
    run, random = Stepping(joins), Random(seed)
    found = run.step(
        [row(micros, at=moment(micros)) for micros in rows],
        [row(micros, since=moment(micros), rate=micros) for micros in versions],
    )
    for watermark in sorted(watermarks):
        found += run.step([], [], watermark=MIDNIGHT_MS + watermark)
        run.restore(random)
    found += run.complete()
    expected = []
    for micros in rows:
        known = [one for one in versions if one <= micros]
        newest = max(known, default=None)
        if newest is not None and keep is not None and micros - newest > keep * 1_000:
            newest = None
        expected.append((moment(micros), newest))
    assert Counter((one["at"], one["rate"]) for one in found) == Counter(expected)
