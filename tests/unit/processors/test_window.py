"""The window operator on tables, without Spark."""

import pyarrow as pa

from dagster_jet.processors.window import Output, WindowAggregate
from dagster_jet.snapshot.chunks import PARTITION_COLUMN

OPERATOR = WindowAggregate(
    keys=("k",),
    window_size_ms=10,
    partials=(("__p0", "sum"), ("__p1", "sum"), ("__p2", "max")),
    outputs=(
        Output("n", "count", ("__p0",)),
        Output("mean", "mean", ("__p1", "__p0")),
        Output("top", "max", ("__p2",)),
    ),
)
RESULT = pa.schema(
    [
        ("k", pa.string()),
        ("window_start", pa.timestamp("us", tz="UTC")),
        ("window_end", pa.timestamp("us", tz="UTC")),
        ("n", pa.int64()),
        ("mean", pa.float64()),
        ("top", pa.int64()),
    ]
)


def partials(*rows):
    """(key, window end, count, sum, max)"""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    k, end, n, total, top = columns
    return pa.table(
        {
            PARTITION_COLUMN: pa.array([len(x or "") for x in k], pa.int32()),
            "k": pa.array(k, pa.string()),
            "__window_end": pa.array(end, pa.int64()),
            "__p0": pa.array(n, pa.int64()),
            "__p1": pa.array(total, pa.int64()),
            "__p2": pa.array(top, pa.int64()),
            "__rows": pa.array(n, pa.int64()),
        }
    )


def test_partials_of_one_key_and_window_merge_and_others_stay_apart():
    merged = OPERATOR.merge(
        [partials(("a", 10, 1, 5, 5), ("a", 20, 1, 1, 1)), partials(("a", 10, 2, 7, 4))]
    )
    rows = {(r["k"], r["__window_end"]): r for r in merged.to_pylist()}
    assert rows["a", 10]["__p0"] == 3 and rows["a", 10]["__p1"] == 12 and rows["a", 10]["__p2"] == 5
    assert rows["a", 20]["__rows"] == 1
    assert merged.schema == partials().schema


def test_null_is_a_key_and_all_null_values_stay_null():
    merged = OPERATOR.merge(
        [partials((None, 10, 1, None, None)), partials((None, 10, 1, None, None))]
    )
    (row,) = merged.to_pylist()
    assert (row["k"], row["__p0"], row["__p1"], row["__p2"]) == (None, 2, None, None)


def test_rows_of_emitted_windows_are_late_and_counted_as_input_rows():
    kept, late = OPERATOR.split_late(partials(("a", 10, 4, 0, 0), ("a", 20, 1, 0, 0)), 10)
    assert late == 4 and kept.column("__window_end").to_pylist() == [20]


def test_a_watermark_of_14_takes_an_event_at_12_and_drops_one_at_9():
    # tumbling 10: event 12 is in the window that ends at 20, event 9 in the one that ended at 10
    from dagster_jet.pipeline.windows import tumbling

    closed = tumbling("10 ms").last_closed_end(14)
    kept, late = OPERATOR.split_late(partials(("a", 20, 1, 12, 12), ("a", 10, 1, 9, 9)), closed)
    assert closed == 10 and late == 1 and kept.num_rows == 1


def test_results_carry_start_end_and_finished_aggregates():
    closed, open_ = OPERATOR.split_closed(
        OPERATOR.merge([partials(("a", 10, 2, 5, 4), ("b", 20, 1, 1, 1))]), 10
    )
    (row,) = OPERATOR.finish(closed, RESULT).to_pylist()
    assert (row["k"], row["n"], row["mean"], row["top"]) == ("a", 2, 2.5, 4)
    assert row["window_start"].timestamp() == 0 and row["window_end"].timestamp() == 0.01
    assert open_.column("k").to_pylist() == ["b"]


def test_a_mean_over_nothing_is_null():
    (row,) = OPERATOR.finish(partials(("a", 10, 0, None, None)), RESULT).to_pylist()
    assert row["n"] == 0 and row["mean"] is None


def test_frames_of_negative_times_end_after_their_events():
    from dagster_jet.pipeline.windows import tumbling

    window = tumbling("4 ms")
    assert [window.last_closed_end(t) for t in (-5, -4, -1, 0, 3, 4)] == [-8, -4, -4, 0, 0, 4]
