"""Session windows, stepped by hand: vectors.md section 3."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import pytest

from dagster_jet.errors import ConfigurationError
from dagster_jet.operators.operator import HASH_COLUMN, VERSION_COLUMN
from dagster_jet.pipeline import aggregates as agg
from dagster_jet.pipeline.windows import session

from .session_stage import SessionStage
from .stage import FINAL, ms

V8 = (1, 6, 12, 30, 35, 40)


@pytest.mark.parametrize("order", [V8, V8[::-1], (40, 1, 35, 6, 30, 12), (12, 40, 6, 30, 1, 35)])
def test_v8_sessions_do_not_depend_on_the_order_of_events(order):
    assert SessionStage(10).sessions(*order, wm=100) == [(1, 22, 3), (30, 50, 3)]


@pytest.mark.parametrize("order", itertools.islice(itertools.permutations(V8), 0, 720, 37))
def test_v8_one_event_per_step_with_restores_in_between(order):
    stage = SessionStage(10)
    for number, time in enumerate(order):
        assert stage.sessions(time) == []
        if number % 2:
            stage.restore()
    assert stage.sessions(wm=100) == [(1, 22, 3), (30, 50, 3)]
    assert stage.sessions(wm=FINAL) == []


def test_a_session_closes_when_its_end_is_before_the_watermark_not_at_it():
    stage = SessionStage(10)
    assert stage.sessions(5, wm=15) == []
    assert stage.sessions(wm=16) == [(5, 15, 1)]


def test_sessions_that_touch_stay_apart_and_those_that_overlap_by_one_do_not():
    assert SessionStage(10).sessions(0, 10, wm=FINAL) == [(0, 10, 1), (10, 20, 1)]
    assert SessionStage(10).sessions(0, 9, wm=FINAL) == [(0, 19, 2)]


def test_an_event_before_the_watermark_is_late_even_if_it_would_fit_an_open_session():
    stage = SessionStage(10)
    stage.sessions(20, wm=19)
    stage.sessions(18)
    assert stage.late_before == 1
    assert stage.sessions(wm=FINAL) == [(20, 30, 1)]


def test_a_bucket_that_is_late_as_a_whole_is_dropped_and_its_rows_are_counted():
    stage = SessionStage(10)
    late = stage.first_stage([("k", 11, 1), ("k", 18, 1), ("k", 20, 1)])
    stage.step(wm=19)
    stage.first_stage = lambda events: late
    stage.sessions()
    assert (stage.late, stage.rows_in) == (2, 3)


def test_groups_are_as_wide_as_the_gap_however_fine_the_buckets_are():
    """Epochs of both kinds of frames then agree whether one task merges them faster."""
    events = [("k", time, 1) for time in (0, 3, 9, 10, 25)] + [("other", 3, 1)]
    for exact, rows in ((False, 4), (True, 6)):
        stage = SessionStage(10, exact=exact)
        arrived = stage.first_stage(events)
        assert (arrived.num_rows, stage.operator.groups(arrived)) == (rows, 4)


def test_an_event_in_a_gap_joins_what_was_two_sessions():
    stage = SessionStage(10)
    stage.sessions(0, 15)
    assert stage.state.scan().num_rows == 2
    stage.restore()
    stage.sessions(8)
    assert stage.state.scan().num_rows == 1
    assert stage.sessions(wm=FINAL) == [(0, 25, 3)]


def test_a_long_session_swallows_short_ones_that_begin_and_end_inside():
    stage = SessionStage(10)
    stage.sessions(*range(0, 100, 9))
    assert stage.sessions(3, 50, wm=FINAL) == [(0, 109, 14)]


def test_a_key_touched_while_one_of_its_sessions_closes_keeps_the_other():
    stage = SessionStage(10)
    stage.sessions(0, 50)
    assert stage.sessions(52, wm=30) == [(0, 10, 1)]
    stage.restore()
    assert stage.sessions(wm=FINAL) == [(50, 62, 2)]


def test_a_candidate_that_a_newer_version_replaced_is_not_emitted():
    stage = SessionStage(10)
    stage.sessions(0)
    stage.sessions(9)
    # The first version, (0, 10), is due by its time; the newest says that the session goes on.
    assert stage.sessions(wm=15) == []
    assert stage.sessions(wm=20) == [(0, 19, 2)]


def test_keys_with_the_same_hash_are_different_keys():
    stage = SessionStage(10, n=agg.count(), s=agg.sum("v"))
    rows = stage.first_stage([("a", 1, 1), ("b", 2, 2), (None, 3, 4), ("a", 4, 8)])
    place = rows.schema.get_field_index(HASH_COLUMN)
    same = rows.set_column(place, HASH_COLUMN, [[7] * rows.num_rows])
    stage.first_stage = lambda events: same if events else same.slice(0, 0)
    stage.step(("a", 1, 1))
    stage.restore()
    got = sorted((str(r["k"]), r["n"], r["s"]) for r in stage.step(wm=FINAL))
    assert got == [("None", 1, 4), ("a", 2, 9), ("b", 1, 2)]


def test_early_results_show_touched_and_untouched_open_sessions():
    stage = SessionStage(10, early=True)
    stage.step(("old", 0, 1), ("closing", -20, 1))
    rows = stage.step(("new", 5, 1), wm=0, early=True)
    seen = sorted((r["k"], ms(r["window_end"]), r["is_early"]) for r in rows)
    assert seen == [("closing", -10, False), ("new", 15, True), ("old", 10, True)]
    rows = stage.step(wm=FINAL)
    assert sorted((r["k"], r["is_early"]) for r in rows) == [("new", False), ("old", False)]


def test_a_step_writes_the_keys_it_touched_under_its_version_and_no_others():
    stage = SessionStage(10)
    stage.step(("a", 0, 1), ("b", 0, 1))
    stage.step(("a", 50, 1))
    versions = {(r["k"], r["__first"]): r[VERSION_COLUMN] for r in stage.state.scan().to_pylist()}
    assert versions == {("a", 0): 2, ("a", 50): 2, ("b", 0): 1}


@pytest.mark.parametrize(
    "order", itertools.islice(itertools.permutations(range(0, 56, 8)), 0, 5_040, 377)
)
def test_v9_a_session_is_cut_at_its_maximum_in_any_order(order):
    """An event at the maximum begins the next one."""
    stage = SessionStage(10, most=16)
    for number, time in enumerate(order):
        assert stage.sessions(time) == []
        if number % 2:
            stage.restore()
    assert stage.sessions(wm=33) == [(0, 16, 2), (16, 32, 2)]
    assert stage.sessions(wm=FINAL) == [(32, 48, 2), (48, 58, 1)]


def test_an_earlier_event_within_the_lag_moves_the_cut_of_what_waits():
    stage = SessionStage(10, most=20)
    stage.sessions(8, 16, 24, 27)
    stage.sessions(4)
    assert stage.sessions(wm=25) == [(4, 24, 3)]
    assert stage.sessions(wm=FINAL) == [(24, 37, 2)]


def test_the_state_has_one_row_per_open_session_and_time_not_passed():
    stage = SessionStage(10, most=20)
    stage.sessions(0, 5, 5, 8, 9, wm=6)
    stage.sessions(8)
    rows = stage.state.scan().sort_by("__first").to_pylist()
    assert [(r["__first"], r["__time"], r["__rows"]) for r in rows] == [
        (0, 15, 3), (8, 8, 2), (9, 9, 1)
    ]  # fmt: skip


def test_a_session_that_is_cut_closes_although_its_key_goes_on():
    stage = SessionStage(10, most=15)
    assert stage.sessions(*range(0, 30, 5), wm=16) == [(0, 15, 3)]
    stage.restore()
    assert stage.sessions(wm=31) == [(15, 30, 3)]
    assert stage.sessions(wm=FINAL) == []


def test_a_maximum_below_the_gap_counts():
    assert SessionStage(10, most=3).sessions(0, 2, 3, 7, wm=FINAL) == [
        (0, 3, 2), (3, 6, 1), (7, 10, 1)
    ]  # fmt: skip


@pytest.mark.parametrize(("gap", "most"), [(5, 50), (40, 50), (10, 12), (10, 200)])
def test_another_gap_or_maximum_loses_no_event_and_counts_none_twice(gap, most):
    """An open session ends where it would have, or later."""
    stage = SessionStage(10, most=50)
    stage.sessions(0, 8, 14, 22, wm=15)
    stage.operator = dataclasses.replace(stage.operator, gap_ms=gap, max_ms=most)
    stage.restore()
    stage.sessions(15, 30, wm=16)
    found = stage.sessions(wm=FINAL)
    assert sum(n for *_, n in found) == 6
    assert found[0][0] == 0 and found[0][1] >= 24


def test_a_gap_or_maximum_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="gap"):
        session("0 ms")
    with pytest.raises(ConfigurationError, match="max_duration"):
        session("1 ms", max_duration="0 ms")
    assert str(session("5 minutes", max_duration="1 hour")) == (
        "sessions, 5 minutes apart, at most 1 hour"
    )


@pytest.mark.parametrize("most", [None, 20])
def test_an_operator_travels(most):
    operator = SessionStage(10, most=most).operator
    assert pickle.loads(pickle.dumps(operator)) == operator
