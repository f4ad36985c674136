"""Rolling aggregates, stepped by hand."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from dagster_jet.errors import BadRowError
from dagster_jet.operators.operator import HASH_COLUMN, TIME_COLUMN
from dagster_jet.pipeline import aggregates as agg

from .rolling_stage import RollingStage
from .stage import FINAL, ms


def test_only_touched_keys_are_updated_and_totals_run_on():
    stage = RollingStage(n=agg.count(), s=agg.sum("v"), m=agg.mean("v"))
    first = stage.step(("a", 0, 1), ("b", 0, 10), ("a", 1, 2))
    assert {r["k"]: (r["n"], r["s"], r["m"]) for r in first} == {"a": (2, 3, 1.5), "b": (1, 10, 10)}
    stage.restore()
    assert [(r["k"], r["n"], r["s"]) for r in stage.step(("b", 5, 1))] == [("b", 2, 11)]
    assert stage.step() == []


def test_nothing_is_late_and_nothing_dies_with_the_watermark():
    stage = RollingStage()
    stage.step(("a", 100, 1), wm=FINAL)
    (row,) = stage.step(("a", -100, 1))
    assert row["n"] == 2 and stage.late == 0 and stage.operator.expired_until(FINAL) is None


def test_a_result_can_carry_the_newest_event_time():
    stage = RollingStage(result_time="at")
    stage.step(("a", 100, 1))
    (row,) = stage.step(("a", 50, 1))
    assert list(row) == ["k", "at", "n"] and ms(row["at"]) == 100


@pytest.mark.parametrize("times", [[None, 1767225600123], [None]])
def test_rows_without_event_time_are_refused(times):
    stage = RollingStage(result_time="at")
    rows = stage.first_stage([(str(n), 0, 1) for n in range(len(times))])
    place = rows.schema.get_field_index(TIME_COLUMN)
    arrived = rows.set_column(place, TIME_COLUMN, pa.array(times, pa.int64()))
    stage.first_stage = lambda _: arrived
    with pytest.raises(BadRowError, match=rf"1 of {len(times)} rows have no event time"):
        stage.step()


def test_a_key_found_by_anothers_hash_has_no_news():
    stage = RollingStage()
    for key in ("a", "b", "a"):
        rows = stage.first_stage([(key, 0, 1)])
        place = rows.schema.get_field_index(HASH_COLUMN)
        rows = rows.set_column(place, HASH_COLUMN, [[7]])
        stage_step = stage.first_stage
        stage.first_stage = lambda events, rows=rows: rows
        got = [(r["k"], r["n"]) for r in stage.step()]
        stage.first_stage = stage_step
    assert got == [("a", 2)]


def test_a_step_appends_what_arrived_not_the_totals():
    stage = RollingStage()
    stage.step(*[(str(i), 0, 1) for i in range(100)])
    seen: list[int] = []
    stage.state.append = lambda delta, wm: seen.append(delta.num_rows)
    stage.step(("5", 0, 1), ("5", 0, 1))
    assert seen == [1]


@pytest.mark.parametrize("key", [None, "a"])
def test_null_is_a_key(key):
    stage = RollingStage()
    stage.step((key, 0, 1))
    assert [(r["k"], r["n"]) for r in stage.step((key, 0, 1))] == [(key, 2)]


def test_an_operator_travels():
    operator = RollingStage().operator
    assert pickle.loads(pickle.dumps(operator)) == operator
