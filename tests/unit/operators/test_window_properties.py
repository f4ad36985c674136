"""Windows, sessions and rolling aggregates against an event-by-event reference, in any batches,
under any watermarks, with state put together in any way, restored at any time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_jet.operators import session as session_module
from dagster_jet.operators import window as window_module
from dagster_jet.pipeline.windows import SlidingWindow

from .frame_stage import FrameStage, expected_windows
from .naive import AGGREGATES, comparable, definitions, expected
from .rolling_stage import ExpiringStage, RollingStage, newest_life
from .session_stage import SessionStage, expected_sessions
from .stage import FINAL, ms

EVENT = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.integers(-20, 60),
    st.none() | st.integers(-9, 29),
)
STEP = st.tuples(
    st.lists(EVENT, max_size=12),
    st.none() | st.integers(-20, 90),
    st.booleans(),  # restore before
    st.booleans(),  # early results are due
)
STEPS = st.lists(STEP, min_size=1, max_size=6)
NAMES = st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=4, unique=True)
SEED = st.integers(0, 2**32)


@st.composite
def sliding_windows(draw: st.DrawFn) -> SlidingWindow:
    slide = draw(st.integers(1, 9))
    return SlidingWindow(slide * draw(st.integers(1, 20)), slide, draw(st.integers(0, slide - 1)))


def ended(steps: list[Any]) -> list[Any]:
    return [*steps, ([], FINAL, False, False)]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sliding_windows(), STEPS, NAMES, SEED, st.sampled_from([3, 1 << 20]), st.sampled_from([0, 8]),
    st.none() | st.integers(0, 60),
)  # fmt: skip
def test_windows(window, steps, names, seed, rows_at_once, few, lateness):
    steps = ended(steps)
    emitted, open_, corrected, late = expected_windows(
        [(e, wm) for e, wm, *_ in steps], window, lateness or 0
    )
    stage = FrameStage(
        window.size_ms, window.slide_ms, window.offset_ms,
        seed=seed, early=True, lateness=lateness, **definitions(*names),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_module, "MAX_ROWS_AT_ONCE", rows_at_once)
        patch.setattr(window_module, "FEW_WINDOWS", few)
        for number, ((events, watermark, restored, early), closed, still_open, again) in enumerate(
            zip(steps, emitted, open_, corrected, strict=True), 1
        ):
            if restored:
                stage.restore()
            rows = stage.step(*events, wm=watermark, early=early)
            for row in rows:
                is_again = (row["k"], ms(row["window_end"])) in again
                assert row.get("correction") == (
                    number * is_again if lateness is not None else None
                )
            wanted = {(*key, False): events for key, events in (closed | again).items()}
            if early:
                wanted |= {(*key, True): events for key, events in still_open.items()}
            got = {(row["k"], ms(row["window_end"]), row["is_early"]): row for row in rows}
            assert len(got) == len(rows)
            assert {key: comparable({n: row[n] for n in names}) for key, row in got.items()} == {
                key: comparable(expected(events, *names)) for key, events in wanted.items()
            }
            for row in rows:
                assert ms(row["window_end"]) - ms(row["window_start"]) == window.size_ms
    assert stage.late == late
    assert stage.rows_in == sum(len(events) for events, *_ in steps)
    assert stage.state.scan().num_rows == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 15), STEPS, NAMES, SEED, st.booleans(), st.sampled_from([0, 4]), st.booleans()
)
def test_sessions(gap, steps, names, seed, collide, folded_by, exact):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "FOLDED_BY", folded_by)
        check_sessions(gap, None, ended(steps), names, seed, collide, exact)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 15), st.integers(1, 40), STEPS, NAMES, SEED, st.booleans(), st.booleans())
def test_bounded_sessions(gap, most, steps, names, seed, collide, exact):
    check_sessions(gap, most, ended(steps), names, seed, collide, exact)


def check_sessions(gap, most, steps, names, seed, collide, exact):
    emitted, open_ = expected_sessions([(e, wm) for e, wm, *_ in steps], gap, most or 10**15)
    stage = SessionStage(gap, most=most, seed=seed, early=True, exact=exact, **definitions(*names))
    stage.collide = collide
    for (events, watermark, restored, early), closed, still_open in zip(
        steps, emitted, open_, strict=True
    ):
        if restored:
            stage.restore()
        rows = stage.step(*events, wm=watermark, early=early)
        wanted = {(*key, False): events for key, events in closed.items()}
        if early:
            wanted |= {(*key, True): events for key, events in still_open.items()}
        got = {
            (row["k"], ms(row["window_start"]), ms(row["window_end"]), row["is_early"]): row
            for row in rows
        }
        assert len(got) == len(rows)
        assert {key: comparable({n: row[n] for n in names}) for key, row in got.items()} == {
            key: comparable(expected(events, *names)) for key, events in wanted.items()
        }
    assert stage.state.scan().num_rows == 0
    assert (stage.late if exact else stage.late_before) == late_events(steps)


def late_events(steps):
    late, reached = 0, None
    for events, watermark, *_ in steps:
        late += sum(reached is not None and time < reached for _, time, _ in events)
        reached = max((one for one in (reached, watermark) if one is not None), default=None)
    return late


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, NAMES, SEED, st.booleans())
def test_rolling_aggregates(steps, names, seed, collide):
    stage = RollingStage(seed=seed, result_time="at", **definitions(*names))
    stage.collide = collide
    seen: dict[Any, list[Any]] = defaultdict(list)
    for events, watermark, restored, early in steps:
        if restored:
            stage.restore()
        rows = stage.step(*events, wm=watermark, early=early)
        for event in events:
            seen[event[0]].append(event)
        assert len(rows) == len({key for key, *_ in events})
        for row in rows:
            mine = seen[row["k"]]
            assert ms(row["at"]) == max(time for _, time, _ in mine)
            assert comparable({n: row[n] for n in names}) == comparable(expected(mine, *names))
    assert stage.late == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 30), STEPS, NAMES, SEED, st.booleans())
def test_rolling_aggregates_with_a_time_to_live(ttl, steps, names, seed, collide):
    stage = ExpiringStage(ttl, seed=seed, **definitions(*names))
    stage.collide = collide
    seen: dict[Any, list[Any]] = defaultdict(list)
    for events, watermark, restored, _ in ended(steps):
        if restored:
            stage.restore()
        before = stage.watermark
        timely = [event for event in events if before is None or event[1] >= before]
        for event in timely:
            seen[event[0]].append(event)
        rows = stage.step(*events, wm=watermark)
        assert stage.late_before == len(events) - len(timely)
        assert len(rows) == len({key for key, *_ in timely})
        for row in rows:
            mine = newest_life(seen[row["k"]], ttl)
            assert ms(row["at"]) == mine[-1][1]
            assert comparable({n: row[n] for n in names}) == comparable(expected(mine, *names))
    assert stage.state.scan().num_rows == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sliding_windows(),
    st.lists(st.tuples(EVENT, st.none() | st.integers(-20, 90), st.none() | st.integers(0, 60))),
    SEED,
)
def test_a_lateness_that_changes_never_shows_a_part_of_a_window(window, steps, seed):
    stage = FrameStage(
        window.size_ms, window.slide_ms, window.offset_ms,
        seed=seed, lateness=30, **definitions("n"),
    )  # fmt: skip
    lateness = least = 30
    taken: dict[Any, int] = defaultdict(int)
    for event, watermark, changed in steps:
        if changed is not None:
            stage.restore()
            stage.change_lateness(changed)
            lateness, least = changed, min(least, changed)
        before, late = stage.watermark, stage.late
        rows = stage.step(event, wm=watermark)
        frame = window.frames.end_of(event[1])
        if before is not None and frame + lateness <= before:
            assert stage.late == late + 1
        if before is None or frame + least > before:
            assert stage.late == late
        if stage.late == late:
            for end in range(frame, frame + window.size_ms, window.slide_ms):
                taken[event[0], end] += 1
        for row in rows:
            assert row["n"] == taken[row["k"], ms(row["window_end"])]
