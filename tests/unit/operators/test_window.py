"""Tumbling and sliding windows, stepped by hand: vectors.md section 3."""

from __future__ import annotations

import pickle
import re

import pyarrow as pa
import pytest

from dagster_jet.core.window_frames import Frames
from dagster_jet.errors import BadRowError, PipelineError
from dagster_jet.operators import window as window_module
from dagster_jet.operators.operator import StepInput
from dagster_jet.operators.partials.numbers import Count, Maximum
from dagster_jet.operators.window import WINDOW_END_MS
from dagster_jet.pipeline import aggregates as agg

from .frame_stage import FrameStage
from .rolling_stage import RollingStage
from .session_stage import SessionStage
from .stage import FINAL, ms


@pytest.mark.parametrize(
    ("offset", "time", "frame"),
    [
        *((0, t, f) for t, f in [(-5, (-8, -4)), (-4, (-4, 0)), (-1, (-4, 0)), (0, (0, 4))]),
        *((0, t, f) for t, f in [(3, (0, 4)), (4, (4, 8))]),
        *(
            (1, t, f)
            for t, f in [(-4, (-7, -3)), (0, (-3, 1)), (1, (1, 5)), (4, (1, 5)), (5, (5, 9))]
        ),
        *((2, t, f) for t, f in [(-4, (-6, -2)), (-2, (-2, 2)), (2, (2, 6)), (5, (2, 6))]),
    ],
)
def test_a_frame_holds_its_start_and_not_its_end(offset, time, frame):
    frames = Frames(4, 4, offset)
    assert (frames.floor(time), frames.end_of(time)) == frame


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ((10, 4), "not a whole multiple"),
        ((4, 8), "not a whole multiple"),
        ((0, 1), "longer than 0"),
        ((4, 0), "longer than 0"),
        ((4, 2, 2), "offset 2 ms is outside"),
        ((4, 2, -1), "offset -1 ms is outside"),
    ],
)
def test_windows_that_cannot_be_cut_into_frames_are_refused_when_they_are_written(sizes, says):
    with pytest.raises(PipelineError, match=re.escape(says)):
        FrameStage(*sizes if len(sizes) == 3 else (*sizes, 0))


def test_v1_a_frame_is_in_every_window_that_reaches_over_it():
    assert FrameStage(4, 1).sums((-1, 1), wm=3) == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("descending", [False, True])
def test_v2_one_watermark_at_a_time_emits_one_window_at_a_time(descending):
    stage = FrameStage(4, 1)
    frames = range(5)
    stage.step(*[("k", f - 1, 1) for f in (reversed(frames) if descending else frames)])
    emitted = [stage.sums(wm=w) for w in range(8)]
    assert emitted == [{w: n} for w, n in enumerate([1, 2, 3, 4, 4, 3, 2, 1])]


def test_v3_the_end_of_the_input_emits_every_window_that_has_rows_and_no_other():
    assert FrameStage(4, 1).sums((-1, 1), (0, 1), wm=FINAL) == {0: 1, 1: 2, 2: 2, 3: 2, 4: 1}


def test_v4_frames_up_to_the_watermark_are_late():
    stage = FrameStage(4, 1)
    assert stage.sums(wm=10) == {}
    # frames 7, 8, 9, 10: events one before the frame's end
    stage.sums((6, 1), (7, 1), (8, 1), (9, 1), (10, 123))
    assert stage.late == 4 and stage.rows_in == 5
    assert stage.sums(wm=FINAL) == {11: 123, 12: 123, 13: 123, 14: 123}


def test_v5_overlapping_windows_collect_their_frames():
    stage = FrameStage(8, 4, n=agg.count(), sum=agg.sum("v"))
    # The labels 2, 4, 6 of the vector lie in frames 4, 4 and 8.
    assert stage.sums((1, 1), (3, 10), (5, 100), wm=FINAL) == {4: 11, 8: 111, 12: 100}


def test_v6_tumbling_windows_one_watermark_after_another():
    stage = FrameStage(4, 4)
    assert stage.sums((0, 1), (1, 1), wm=4) == {4: 2}
    assert stage.sums((4, 1), (5, 1), (8, 1), (8, 1), wm=8) == {8: 2}
    assert stage.sums((8, 1), wm=12) == {12: 3}


def test_v13_a_restore_between_frames_changes_nothing():
    stage = FrameStage(4, 1)
    stage.sums((1, 1), (2, 2))
    stage.restore()
    assert stage.sums((3, 3), (4, 4), wm=10) == {2: 1, 3: 3, 4: 6, 5: 10, 6: 9, 7: 7, 8: 4}


def test_lateness_is_by_frame_a_watermark_of_14_takes_12_and_drops_9():
    stage = FrameStage(10, 10)
    stage.sums(wm=14)
    stage.sums((12, 1), (9, 1))
    assert stage.late == 1
    assert stage.sums(wm=20) == {20: 1}


def test_rows_that_no_window_takes_are_refused_also_before_there_is_a_watermark():
    stage = FrameStage(10, 10)
    rows = stage.first_stage([("k", 1, 1)])
    place = rows.schema.get_field_index(WINDOW_END_MS)
    rows = rows.set_column(place, rows.schema.field(place), pa.nulls(1, pa.int64()))
    with pytest.raises(BadRowError, match="in no window"):
        stage.operator.step(StepInput((rows,), None, None, 1), stage.state)


def test_an_offset_moves_every_window():
    stage = FrameStage(4, 4, 1)
    assert stage.sums((0, 1), (1, 10), (4, 10), (5, 100), wm=5) == {1: 1, 5: 20}
    assert stage.sums(wm=9) == {9: 100}


def test_a_leap_over_years_emits_what_is_there_and_nothing_in_between():
    stage = FrameStage(10, 5)
    assert stage.sums((0, 1), (10**12, 2), wm=FINAL) == {
        5: 1, 10: 1, 10**12 + 5: 2, 10**12 + 10: 2,
    }  # fmt: skip


def test_many_windows_at_once_are_worked_off_in_portions(monkeypatch):
    monkeypatch.setattr(window_module, "MAX_ROWS_AT_ONCE", 10)
    stage = FrameStage(40, 1)
    expected = {end: min(end, 50) - max(end - 40, 0) for end in range(1, 90)}
    assert stage.sums(*[(t, 1) for t in range(50)], wm=FINAL) == expected


def test_a_frame_of_which_windows_are_still_open_is_not_given_up():
    stage = FrameStage(8, 4)
    assert stage.sums((1, 1), wm=4) == {4: 1}
    stage.restore()
    assert stage.sums(wm=8) == {8: 1}
    assert stage.operator.expired_until(8) == 4 and stage.operator.expired_until(None) is None


def test_the_oldest_frame_of_an_open_window_is_kept_to_the_millisecond():
    stage = FrameStage(3, 1)
    assert stage.sums((0, 1), (1, 10), wm=2) == {1: 1, 2: 11}  # frame 1 is in window 3 as well
    assert stage.sums(wm=3) == {3: 11}
    stage = FrameStage(1, 1)
    assert stage.sums((0, 1), (1, 10), wm=1) == {1: 1}
    assert stage.sums(wm=2) == {2: 10}


def test_a_longer_window_after_a_change_of_the_code_reads_the_frames_that_are_there():
    old, new = FrameStage(4, 2), FrameStage(8, 2)
    old.sums((0, 1), (3, 10), wm=4)
    new.state.append(new.operator.merge([old.state.scan()]), None)
    new.watermark = 4
    assert new.sums(wm=10) == {6: 10, 8: 10, 10: 10}  # frame 2 had died with window 4


def test_a_late_row_corrects_its_windows_until_the_lateness_is_over():
    stage = FrameStage(4, 2, lateness=3)

    def corrected(*events, wm=None):
        rows = stage.step(*[("k", time, value) for time, value in events], wm=wm)
        return sorted((ms(r["window_end"]), r["sum"], r["correction"]) for r in rows)

    assert corrected((0, 1), (3, 10), wm=4) == [(2, 1, 0), (4, 11, 0)]
    assert corrected((1, 100), (4, 1000)) == [(2, 101, 2), (4, 111, 2)]
    assert corrected(wm=5) == []  # the lateness of the window that ends at 2 is over
    assert corrected((0, 5), (2, 7)) == [(4, 118, 4)] and stage.late == 1
    assert corrected(wm=8) == [(6, 1017, 0), (8, 1000, 0)]


def test_a_longer_lateness_takes_no_row_of_a_window_whose_rows_are_gone():
    stage = FrameStage(4, 4, lateness=0)
    assert stage.sums((0, 1), (5, 10), wm=8) == {4: 1, 8: 10}
    stage.change_lateness(20)
    assert stage.sums((1, 2), (6, 20)) == {} and stage.late == 2
    assert stage.sums((9, 1), wm=12) == {12: 1}
    assert stage.sums((10, 2), wm=16) == {12: 3} and stage.late == 2


def test_early_results_show_open_windows_without_closing_them():
    stage = FrameStage(4, 2, early=True)
    rows = stage.step(("k", 0, 1), ("k", 3, 10), wm=2, early=True)
    seen = [(ms(r["window_end"]), r["sum"], r["is_early"]) for r in rows]
    assert sorted(seen) == [(2, 1, False), (4, 11, True), (6, 10, True)]
    rows = stage.step(("k", 4, 100), wm=6)
    seen = [(ms(r["window_end"]), r["sum"], r["is_early"]) for r in rows]
    assert sorted(seen) == [(4, 11, False), (6, 110, False)]


def test_a_stage_that_did_not_ask_for_early_results_has_no_such_column():
    stage = FrameStage(4, 4)
    assert stage.step(("k", 0, 1), early=True) == []
    assert "is_early" not in stage.operator.result_schema.names


def test_results_carry_key_start_end_and_finished_aggregates():
    stage = FrameStage(10, 10, n=agg.count(), m=agg.mean("v"), top=agg.max("v"), few=agg.min("v"))
    (row,) = stage.step(("a", 1, 2), ("a", 2, 3), wm=10)
    assert (row["k"], row["n"], row["m"], row["top"], row["few"]) == ("a", 2, 2.5, 3, 2)
    assert (ms(row["window_start"]), ms(row["window_end"])) == (0, 10)


def test_null_is_a_key_and_null_values_count_for_nothing():
    stage = FrameStage(10, 10, n=agg.count(), nv=agg.count("v"), m=agg.mean("v"), s=agg.sum("v"))
    (row,) = stage.step((None, 1, None), (None, 2, None), wm=10)
    assert (row["k"], row["n"], row["nv"], row["m"], row["s"]) == (None, 2, 0, None, None)


def test_a_step_adds_to_the_state_what_arrived_and_not_what_was_there():
    stage = FrameStage(10, 10)
    stage.step(*[(str(k), 1, 1) for k in range(50)])
    given_before = stage.state.scan().num_rows
    stage.step(("7", 2, 1), ("7", 3, 1))
    assert given_before == 50 and stage.state._deltas[-1].num_rows in (1, 50)


def test_aggregates_share_partials_and_columns_name_what_is_in_them():
    stage = FrameStage(10, 10, m=agg.mean("v"), s=agg.sum("v"), n=agg.count("v"))
    assert [name for name, _ in stage.aggregation.partials] == ["__sum(v)", "__count(v)"]
    assert stage.aggregation.spark_columns("unix_millis(at)") == (
        ("__sum(v)", "sum(`v`)"),
        ("__count(v)", "count(`v`)"),
        ("__rows", "count(1)"),
    )
    assert (Count().sql("t"), Maximum("a.b").sql("t")) == ("count(1)", "max(`a`.`b`)")


def test_an_operator_travels():
    operator = FrameStage(4, 2).operator
    assert pickle.loads(pickle.dumps(operator)) == operator


@pytest.mark.parametrize("time", [1_763_000_000_000_000_000, -9_300_000_000_000_000])
@pytest.mark.parametrize(
    "stage",
    [
        lambda: FrameStage(10_000, 10_000),
        lambda: SessionStage(10),
        lambda: RollingStage(result_time="at"),
    ],
    ids=["window", "session", "rolling"],
)
def test_an_event_time_that_no_timestamp_can_say_is_refused_before_it_is_saved(stage, time):
    with pytest.raises(BadRowError, match=r"event time near -?\d+ ms is outside .*is milliseconds"):
        stage().step(("a", time, 1))


def test_how_late_a_row_is_does_not_matter():
    stage = FrameStage(10_000, 10_000)
    assert stage.step(("a", 5, 1), ("a", 25_000, 1), wm=20_000)
    assert stage.step(("a", -9_300_000_000_000_000, 1)) == [] and stage.late == 1
