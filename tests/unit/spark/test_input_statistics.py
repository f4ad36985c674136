"""Statistics of a stage's input are computed from its rows."""

import pyarrow as pa
import pytest

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.operators.aggregates.aggregation import ROW_COUNT
from dagster_jet.operators.operator import TIME_COLUMN
from dagster_jet.pipeline import LateStage, Stage
from dagster_jet.snapshot.manifest import Ack, Arrived
from dagster_jet.spark.planning.wiring import counted_inputs
from dagster_jet.spark.tasks.input_statistics import Statistics, count_arrived, total_of

NOTHING = Arrived(0, 0, None)


@pytest.mark.parametrize(
    ("times", "expected"),
    [([5, 9, 7], Arrived(3, 3, 9)), ([5, None], Arrived(2, 1, 5)), ([], NOTHING)],
)
def test_of_rows(times: list[int | None], expected: Arrived) -> None:
    assert count_arrived(pa.table({TIME_COLUMN: pa.array(times, pa.int64())})) == expected


@pytest.mark.parametrize(
    ("rows", "timed", "tops", "expected"),
    [
        ([2, 3], [2, 3], [7, 8], Arrived(5, 5, 8)),
        ([2, 3], [2, 0], [7, None], Arrived(5, 2, 7)),
        ([], [], [], NOTHING),
    ],
)
def test_of_groups(rows: list, timed: list, tops: list, expected: Arrived) -> None:
    columns = {
        ROW_COUNT: rows,
        **dict(zip((f.name for f in Statistics.OF_GROUPS.value), (timed, tops), strict=True)),
    }
    table = pa.table({name: pa.array(column, pa.int64()) for name, column in columns.items()})
    assert count_arrived(table) == expected


def test_of_groups_of_partitions() -> None:
    columns = ([1, 2, 3, 4], [1, 2, 3, 0], [7, 9, 8, None], [1, 0, 1, 2])
    names = (ROW_COUNT, *(f.name for f in Statistics.OF_PARTITIONS.value))
    found = count_arrived(pa.table(dict(zip(names, columns, strict=True))))
    assert (found.rows, found.rows_with_time, found.top_event_ms) == (10, 6, 9)
    assert dict(found.partition_tops_ms) == {1: 8, 0: 9}, "partition 2 has no event time"


def test_of_all_tasks() -> None:
    assert total_of([Arrived(2, 1, 5), NOTHING, Arrived(3, 3, -4)]) == Arrived(5, 4, 5)
    assert total_of([]) == NOTHING
    parts = [Arrived(1, 1, 5, ((0, 5), (3, 4))), Arrived(1, 1, 6, ((3, 6),))]
    assert dict(total_of(parts).partition_tops_ms) == {0: 5, 3: 6}


def test_it_travels_in_acks() -> None:
    ack = Ack("counts", 0, "1.a", arrived=(Arrived(2, 1, 5, ((0, 5),)), NOTHING), watermark_ms=4)
    assert Ack.from_bytes(ack.to_bytes()) == ack


def rows_of(p: Pipeline, name: str = "rows") -> Stage:
    source = sources.files("/in", format="json", schema="k string, ts long")
    return p.read_from(source, name=name).with_timestamps("ts")


def counted(rows: Stage) -> LateStage:
    counts = rows.group_by("k").window(windows.tumbling("1 s"))
    return counts.aggregate(n=agg.count(), name="stage")


def counted_of(p: Pipeline, result: Stage, watched: tuple[str, ...] = ()) -> tuple[str | None, ...]:
    result.write_to(sinks.files("/out", format="json"), name="out")
    return counted_inputs(p.graph, p.graph["stage"], watched)


def test_a_stage_right_behind_the_timestamps_counts() -> None:
    p = Pipeline("j")
    assert counted_of(p, counted(rows_of(p))) == ("rows.timestamps",)


def test_a_join_counts_both_sides() -> None:
    p = Pipeline("j")
    joined = rows_of(p, "a").join(rows_of(p, "b"), on="k", within="1 s", name="stage")
    assert counted_of(p, joined) == ("a.timestamps", "b.timestamps")


def test_a_filter_in_between_would_hide_rows() -> None:
    p = Pipeline("j")
    assert counted_of(p, counted(rows_of(p).filter("ts > 5"))) == (None,)


def test_rows_that_others_read_too_are_not_counted_by_one_of_them() -> None:
    p = Pipeline("j")
    rows = rows_of(p)
    rows.write_to(sinks.files("/copy", format="json"), name="copy")
    assert counted_of(p, counted(rows)) == (None,)


def test_partitions_are_observed_one_by_one() -> None:
    p = Pipeline("j")
    assert counted_of(p, counted(rows_of(p)), ("rows.timestamps",)) == (None,)


def test_late_rows_for_a_sink_are_taken_out_before() -> None:
    p = Pipeline("j")
    counts = counted(rows_of(p))
    counts.late_to(sinks.files("/late", format="json"), name="late")
    assert counted_of(p, counts) == ()
