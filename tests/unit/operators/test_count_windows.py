"""Windows by count against rows taken one after the other, in any steps, with restores."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet import Pipeline, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.count_windows import CountWindows
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.sliding_count_windows import SlidingCountWindows
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.pipeline.stage import Stage
from dagster_jet.pipeline.user_functions import Rest

from .stepping import FINAL_WATERMARK, Stepping, addressed, colliding

ROWS = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
SIZES = st.integers(1, 5).flatmap(
    lambda size: st.tuples(st.just(size), st.none() | st.just("emit") | st.integers(1, size))
)
"""Size, and the slide or "emit"."""
EVENT = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 40))
STEP = st.tuples(st.lists(EVENT, max_size=8), st.none() | st.integers(0, 50), st.booleans())


def counted(
    size: int, slide: int | str | None, *, in_event_order: bool, rows_of: pa.Schema = ROWS
) -> Any:
    aggregates = {"n": agg.count(), "total": agg.sum("v"), "values": agg.collect_list("v")}
    aggregates |= {"first": agg.first("v"), "last": agg.last("v"), "high": agg.max("v")}
    aggregation = Aggregation(tuple(aggregates.items()))
    function = CountWindows(("k",), size, aggregation, "at")
    if isinstance(slide, int):
        function = SlidingCountWindows(("k",), size, aggregation, "at", slide=slide)
    inner = StatefulMapInBatches(
        "counted", ("k",), rows_of, function.output_schema(rows_of),
        function.state_columns(rows_of),
        function, on_end=function.rest if slide == "emit" else None,
    )  # fmt: skip
    return InEventOrder(inner) if in_event_order else inner


@given(SIZES, st.lists(STEP, max_size=5), st.booleans(), st.booleans(), st.integers())
def test_count_windows(sizes, steps, in_event_order, collide, seed):
    size, slide = sizes
    run, random = Stepping(counted(size, slide, in_event_order=in_event_order)), Random(seed)
    found, taken, numbers = [], [], iter(range(1_000))
    for events, watermark, restored in steps:
        if restored:
            run.restore(random)
        rows = [
            addressed(at, {"k": k}, **({"hash_of": colliding} if collide else {}), at=at, v=v)
            for (k, at), v in zip(events, numbers, strict=False)
        ]
        before = run.watermark
        if watermark is not None and before is not None:
            watermark = max(before, watermark)
        taken += [r for r in rows if not in_event_order or before is None or r["at"] >= before]
        found += run.step(rows, watermark=watermark)
    last = [addressed(60, {"k": "a"}, at=60, v=1_000)] * random.randrange(2) if not collide else []
    taken += last
    found += run.step(last, watermark=FINAL_WATERMARK)
    by_key: dict[Any, list[Any]] = defaultdict(list)
    for row in sorted(taken, key=lambda row: row["at"]) if in_event_order else taken:
        by_key[row["k"]].append(row)
    expected = []
    for k, mine in by_key.items():
        step, rest = (size, size - 1) if slide == "emit" else (slide or size, 0)
        for begin in range(0, len(mine) - size + 1 + rest, step):
            window = mine[begin : begin + size]
            values = [row["v"] for row in window]
            expected.append(
                {
                    "k": k, "at": max(row["at"] for row in window), "n": len(window),
                    "total": sum(values), "values": values, "first": values[0],
                    "last": values[-1], "high": max(values),
                }
            )  # fmt: skip
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.parametrize(("slide", "windows_of"), [(None, 2), (1, 5)])
def test_both_zeros_are_one_key(slide, windows_of):
    rows_of = pa.schema([("k", pa.float64()), ("at", pa.int64()), ("v", pa.int64())])
    run = Stepping(counted(4, slide, in_event_order=False, rows_of=rows_of))
    keys = [0.0, -0.0, -0.0, 0.0]
    found = []
    for first in (0, 4):
        rows = [
            addressed(0, {"k": key}, hash_of=colliding, at=first, v=v) for v, key in enumerate(keys)
        ]
        found += run.step(rows, watermark=run.watermark)
        run.restore(Random(first))
    assert [row["n"] for row in found] == [4] * windows_of


def test_after_an_end_that_emitted_the_rest_windows_begin_anew():
    """A job in order of arrival may go on after its end."""
    run = Stepping(counted(3, "emit", in_event_order=False))
    totals = []
    for first in (0, 4):
        rows = [addressed(0, {"k": "a"}, at=0, v=v) for v in range(first, first + 4)]
        totals += [row["total"] for row in run.step(rows, watermark=run.watermark)]
        run.restore(Random(first))
        totals += [row["total"] for row in run.step([], watermark=FINAL_WATERMARK)]
        run.restore(Random(first))
    assert totals == [0 + 1 + 2, 3, 4 + 5 + 6, 7]
    assert run.step([], watermark=FINAL_WATERMARK) == []


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ConfigurationError, match="at least 1 row"):
        windows.count(0)
    for slide in (0, 4):
        with pytest.raises(ConfigurationError, match=r"slide: .* is not between 1 and the size"):
            windows.count(3, slide=slide)
    with pytest.raises(ConfigurationError, match=r"rest='keep' is unknown"):
        windows.count(3, rest="keep")
    with pytest.raises(ConfigurationError, match=r'rest="emit" is not available with slide'):
        windows.count(3, slide=2, rest="emit")
    rows = Pipeline("p").read_from(sources.files("in", format="csv", schema="k string"), name="in")
    keyed = rows.group_by("k")
    with pytest.raises(PipelineError, match=r"job 'p'.*are for windows in event time"):
        keyed.window(windows.count(3), early_results="1 second")
    with pytest.raises(PipelineError, match=r"stage 'a'.* needs event time"):
        keyed.window(windows.count(3, order="event time")).aggregate(n=agg.count(), name="a")
    timed = rows.with_timestamps("k").group_by("k")
    with pytest.raises(PipelineError, match=r"stage 'b'.* named 'k'"):
        timed.window(windows.count(3)).aggregate(n=agg.count(), name="b")
    counted = rows.window(windows.count(3)).aggregate(n=agg.count(), name="c")
    with pytest.raises(PipelineError, match=r"no row can be late.*no event time"):
        counted.late_to(None, name="late")


def test_behind_a_window_that_emits_the_rest_event_time_is_refused():
    """The rest comes at the end of the input, so a later window would drop it as late."""
    rows = Pipeline("p").read_from(sources.files("in", format="csv", schema="k string"), name="in")
    keyed = rows.with_timestamps("at").group_by("k")

    def counted(name: str, rest: Rest) -> Stage:
        window = windows.count(3, rest=rest)
        return keyed.window(window).aggregate(n=agg.count(), name=name).filter("n > 1")

    assert counted("a", "drop").window(windows.tumbling("1 hour"))
    with pytest.raises(PipelineError, match=r"needs event time.*Leave rest=\"emit\" out .* 'b'"):
        counted("b", "emit").window(windows.tumbling("1 hour"))
    with pytest.raises(PipelineError, match=r"stage 'd': .*event time.*Leave rest"):
        counted("c", "emit").deduplicate(within="1 hour", name="d")
    assert counted("e", "emit").rolling_aggregate(n=agg.sum("n"), name="f")
