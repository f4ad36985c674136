"""Keys of several columns, among them ("a", null) and (null, "a"), whose hashes are equal."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from dagster_jet.core.partition import key_hash
from dagster_jet.core.window_frames import Frames
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.bounded_sessions import BoundedSessions
from dagster_jet.operators.first_stage import FramePartials, KeyPartials, SessionBuckets
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    MemoryState,
    StepInput,
)
from dagster_jet.operators.rolling import RollingAggregate
from dagster_jet.operators.session import SessionWindows
from dagster_jet.operators.window import SlidingWindows
from dagster_jet.pipeline import aggregates as agg

from .stage import FINAL

KEYS = ("k", "j")
AGGREGATION = Aggregation((("n", agg.count()), ("all", agg.collect_list("v"))))
PAIRS = list(itertools.product(["a", "b", None], ["a", None]))


def rows_of(times: dict[tuple[str | None, str | None], list[int]]) -> pa.Table:
    rows = [
        {
            PARTITION_COLUMN: key_hash(*pair) % 271,
            HASH_COLUMN: key_hash(*pair),
            TIME_COLUMN: time,
            "k": pair[0],
            "j": pair[1],
            "v": time,
        }
        for pair, mine in times.items()
        for time in mine
    ]
    types = [pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.string(), pa.int64()]
    names = [PARTITION_COLUMN, HASH_COLUMN, TIME_COLUMN, "k", "j", "v"]
    return pa.Table.from_pylist(rows, pa.schema(list(zip(names, types, strict=True))))


@pytest.mark.parametrize(
    ("first_stage", "operator"),
    [
        (
            FramePartials(KEYS, AGGREGATION, Frames(100, 50)),
            lambda schema: SlidingWindows(schema, KEYS, Frames(100, 50), AGGREGATION),
        ),
        (
            SessionBuckets(KEYS, AGGREGATION, 30),
            lambda schema: SessionWindows(schema, KEYS, 30, AGGREGATION),
        ),
        (
            SessionBuckets(KEYS, AGGREGATION, 1),
            lambda schema: BoundedSessions(schema, KEYS, 30, 40, AGGREGATION),
        ),
        (
            KeyPartials(KEYS, AGGREGATION),
            lambda schema: RollingAggregate(schema, KEYS, AGGREGATION),
        ),
    ],
)
def test_keys_with_nulls_stay_apart(first_stage, operator):
    assert key_hash("a", None) == key_hash(None, "a")
    times = {pair: [place, place + 10] for place, pair in enumerate(PAIRS)}
    epochs = [rows_of({pair: [mine[e]] for pair, mine in times.items()}) for e in (0, 1)]
    arrived = [first_stage.partials(rows, None)[0] for rows in epochs]
    made = operator(arrived[0].schema)
    state = MemoryState(made)
    results = []
    for version, table in enumerate([*arrived, arrived[0].slice(0, 0)]):
        after = FINAL if version == 2 else None
        step = made.step(StepInput((table,), None, after, version), state)
        state.append(step.delta, after)
        results += step.results.to_pylist()
    # Each window or session, or each key's last update: everything of its key and nothing else.
    complete = [row for row in results if row["n"] == 2]
    assert len(complete) == len(PAIRS) * (2 if isinstance(made, SlidingWindows) else 1)
    assert all(row["all"] == times[row["k"], row["j"]] for row in complete)
