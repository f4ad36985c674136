"""The watermark that a task finds from its own rows is what the driver finds after the epoch."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.execution.watermarks import WatermarkTracker
from dagster_jet.snapshot.manifest import Arrived
from dagster_jet.spark.tasks.input_statistics import InputRef

PARTITIONS = ("a", "b", "c")
WATERMARKS_MS = st.integers(-50, 500)
TIMES = st.dictionaries(st.sampled_from(PARTITIONS), WATERMARKS_MS)
SOURCES = ("first", "second")


@dataclass(frozen=True)
class Epoch:
    """Newest events of each source's partitions, and the partitions with unread rows."""

    tops: tuple[dict[str, int], ...]
    waiting: tuple[dict[str, int], ...]
    elapsed_ms: int


EPOCHS = st.lists(
    st.builds(
        Epoch,
        st.tuples(TIMES, TIMES),
        st.tuples(*[st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 2))] * 2),
        st.integers(0, 200),
    ),
    min_size=1,
    max_size=6,
)


def tracker(lag_ms: int, idle_ms: int, retention_ms: int | None) -> WatermarkTracker:
    """Two sources, whose rows meet in a window, and a window over it: its input has a delay."""
    p = Pipeline("j")
    first, second = (
        p.read_from(
            sources.files("/x", format="json", schema="ts long"), name=name
        ).with_timestamps("ts", allowed_lag=f"{lag_ms} ms", idle_timeout=f"{idle_ms} ms")
        for name in SOURCES
    )
    counts = first.merge(second).window(windows.tumbling("10 ms"))
    counted = counts.aggregate(n=agg.count(), name="counts")
    totals = counted.window(windows.tumbling("30 ms")).aggregate(n=agg.sum("n"), name="totals")
    totals.write_to(sinks.files("/y", format="json"), name="out")
    return WatermarkTracker(p.graph, max_retention_ms=retention_ms)


@given(EPOCHS, st.integers(0, 20), st.sampled_from([0, 100]), st.sampled_from([None, 150]))
def test_as_the_driver_finds_it(
    epochs: list[Epoch], lag_ms: int, idle_ms: int, retention_ms: int | None
) -> None:
    t, now_ms = tracker(lag_ms, idle_ms, retention_ms), 0
    nodes = {name: f"{name}.timestamps" for name in SOURCES}
    counted_by = {node: InputRef("counts", n) for n, node in enumerate(nodes.values())}
    for epoch in epochs:
        now_ms += epoch.elapsed_ms
        read = {}
        for node, tops, waiting in zip(nodes.values(), epoch.tops, epoch.waiting, strict=True):
            t.expect(node, {**waiting, **dict.fromkeys(tops, 1)}, now_ms)
            read[node] = sorted(tops)
        t.check_time(now_ms, [n for n, tops in zip(SOURCES, epoch.tops, strict=True) if tops])
        own = {stage: t.own_watermark(stage, counted_by, read) for stage in ("counts", "totals")}
        arrived = {}
        for node, tops in zip(nodes.values(), epoch.tops, strict=True):
            newest = max(tops.values(), default=None)
            by_index = tuple((read[node].index(name), top) for name, top in tops.items())
            arrived[counted_by[node]] = Arrived(len(tops), len(tops), newest, by_index)
            t.observe(node, len(tops), newest, now_ms, tops)
        for stage, known in own.items():
            assert known is not None
            assert known.after(arrived) == t.watermark_ms(stage)


def test_a_node_that_no_task_counts_or_whose_rows_are_elsewhere() -> None:
    t = tracker(0, 0, None)
    first = {"first.timestamps": InputRef("counts", 0)}
    assert t.own_watermark("counts", first, {}) is None
    both = {**first, "second.timestamps": InputRef("other", 0)}
    own = t.own_watermark("counts", both, {})
    assert own is not None
    assert own.after({InputRef("counts", 0): Arrived(1, 1, 7)}) is None


def test_what_the_next_rows_will_bring() -> None:
    t = tracker(0, 0, None)
    assert t.expected_ms("counts", 1_000) is None, "no task has advanced it yet"
    t.reach("counts", None, 104)
    assert t.reached_ms["counts"] == 100
    assert [t.expected_ms("counts", ms) for ms in (0, 5, 6, 16)] == [100, 100, 110, 120]
    t.reach("counts", 100, 134)
    assert t.expected_ms("counts", 0) == 160, "it grew by 30 from one epoch to the next"
    t.reach("counts", 130, None)
    assert t.expected_ms("counts", 1_000) is None
