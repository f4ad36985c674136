"""The planner chooses the next epoch and the end of an execution from frozen inputs, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.execution.epoch_planner import EpochPlanner, Inputs, PollRequest, StageTime
from dagster_jet.execution.stopping import Until
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.epoch_cycle import CycleState
from dagster_jet.snapshot.manifest import Run, ShardState
from dagster_jet.snapshot.pending_snapshot import PendingState
from dagster_jet.snapshot.protocol import RunEpoch, StopKind

TERMINAL = [(0, 0, True), (1, 0, False), (1, 1, True)]
STREAMING = EpochPlanner(Until(input_ends=False, stop=None), poll_interval_ms=200, started_ms=0)
DRAINING = replace(STREAMING, until=Until(input_ends=True, stop=StopKind.SHUTDOWN))
READY = CoordinatorView(cycle=CycleState.READY)
SAVED = {"hourly": StageTime(reached_ms=100, watermark_ms=100)}
CLOSES = {"hourly": StageTime(reached_ms=100, watermark_ms=160)}
ALL, SOME = (
    PollRequest(polls=True, waits_for_all=True),
    PollRequest(polls=True, waits_for_all=False),
)


def inputs(*waiting: str, **more: object) -> Inputs:
    return replace(Inputs(SOME, 1_000, frozenset(waiting), SAVED), **more)


@pytest.mark.parametrize(
    ("found", "wants"),
    [
        (inputs(), False),
        (inputs("inbox"), True),
        (inputs(stages=CLOSES), True),
        (inputs(early_due=True), True),
        (inputs(last_epoch_ms=1, always_rings=True), False),
        (inputs(last_epoch_ms=0, always_rings=True), True),
    ],
)
def test_an_epoch_needs_a_reason(found: Inputs, wants: bool) -> None:
    tick = STREAMING.tick(found, None, READY)
    assert (tick.wants_epoch, tick.stop, tick.now_ms) == (wants, None, 1_000)


def test_an_epoch_writes_nothing_until_a_window_closes() -> None:
    windows = replace(STREAMING, output_stages=frozenset({"hourly"}))

    def writes_nothing(planner: EpochPlanner, **more: object) -> bool:
        return planner.tick(inputs("inbox", **more), None, READY).writes_nothing

    assert writes_nothing(windows)
    assert not writes_nothing(STREAMING), "it may have other output"
    assert not writes_nothing(windows, stages=CLOSES)
    assert not writes_nothing(windows, early_due=True)
    assert not writes_nothing(windows, always_rings=True)
    assert writes_nothing(windows, stages={**SAVED, "before it": StageTime(1, 2)})
    assert not writes_nothing(windows, stages={"hourly": StageTime(100, 100, 160)}), "by its rows"
    assert writes_nothing(windows, stages={"hourly": StageTime(100, 100, 100)})
    assert windows.tick(
        inputs(stages={"hourly": StageTime(100, 100, 160)}), None, READY
    ).writes_nothing, "there are no rows"


def silence(*earliest_ms: int | None) -> CoordinatorView:
    """The view of a job with state, one run for each time."""
    runs = tuple(Run(str(ms), 1, 1, ms, 10**17) for ms in earliest_ms)
    return replace(READY, shards={"silent": (ShardState(), ShardState(deciding=runs))})


def test_a_timer_in_processing_time_is_a_reason_when_it_is_due() -> None:
    timed = inputs(clocks_ms={"silent": 900})
    assert not STREAMING.tick(timed, None, silence()).wants_epoch
    assert not STREAMING.tick(timed, None, silence(900, None)).wants_epoch, "not yet over"
    assert STREAMING.tick(timed, None, silence(5_000, 899)).wants_epoch
    assert not STREAMING.tick(inputs(clocks_ms={"other": 900}), None, silence(5)).wants_epoch
    soon = replace(timed, last_epoch_ms=1)
    assert not STREAMING.tick(soon, None, silence(899)).wants_epoch, "at most once a second"


def test_a_run_that_drains_first_calls_the_timers_that_are_due() -> None:
    timed = inputs(clocks_ms={"silent": 900})
    assert DRAINING.tick(timed, None, silence(900)).stop is StopKind.SHUTDOWN
    assert DRAINING.tick(timed, None, silence(899)).stop is None, "one epoch more"


@pytest.mark.parametrize("kind", [StopKind.SUSPEND, StopKind.SHUTDOWN, StopKind.RESTART])
def test_a_stop_does_not_wait_for_the_input(kind: StopKind) -> None:
    assert STREAMING.tick(inputs("inbox"), kind, READY).stop is kind


def test_a_job_completes_with_what_was_there_when_it_was_asked_to() -> None:
    assert STREAMING.poll_request(StopKind.COMPLETE, input_ended=False) == ALL
    last = inputs(request=ALL)
    assert STREAMING.tick(last, StopKind.COMPLETE, READY).stop is StopKind.COMPLETE
    waits = STREAMING.tick(replace(last, waiting=frozenset({"inbox"})), StopKind.COMPLETE, READY)
    assert waits.stop is None and waits.wants_epoch
    hurried = STREAMING.tick(inputs(request=SOME), StopKind.COMPLETE, READY)
    assert hurried.stop is None, "asked while the sources were being looked at"


def test_a_run_that_drains_ends_with_a_snapshot_of_all_and_closes_what_is_due() -> None:
    assert not DRAINING.poll_request(None, input_ended=True).polls
    assert DRAINING.tick(inputs("inbox"), None, READY).stop is None
    assert DRAINING.tick(inputs(), None, READY).stop is StopKind.SHUTDOWN
    assert DRAINING.tick(inputs(stages=CLOSES), None, READY).stop is None, "one epoch more"
    unsaved = replace(READY, epochs_since_barrier=1)
    assert DRAINING.tick(inputs(stages=CLOSES), None, unsaved).stop is StopKind.SHUTDOWN


@pytest.mark.parametrize("planner", [DRAINING, STREAMING], ids=["drains", "completes"])
def test_a_backlog_is_read_to_its_end_before_a_stop(planner: EpochPlanner) -> None:
    """One poll reads only a part of a queue. Where the queue waits for acknowledgement, a snapshot
    helps."""
    asked = None if planner is DRAINING else StopKind.COMPLETE
    request = planner.poll_request(asked, input_ended=True)
    unread = inputs(request=request, backlog=frozenset({"queue"}))
    tick = planner.tick(unread, asked, READY)
    assert (tick.stop, tick.wants_epoch, tick.wants_snapshot) == (None, False, False)
    held = replace(unread, is_held=True)
    tick = planner.tick(held, asked, READY)
    assert (tick.stop, tick.wants_epoch, tick.wants_snapshot) == (None, False, True)
    tick = planner.tick(replace(held, waiting=frozenset({"queue"})), asked, READY)
    assert (tick.wants_epoch, tick.wants_snapshot) == (True, False), "first what waits"
    read = planner.tick(inputs(request=request), asked, READY)
    assert read.stop is (StopKind.COMPLETE if asked else StopKind.SHUTDOWN)


def test_an_execution_may_end_with_time() -> None:
    planner = replace(STREAMING, until=Until(input_ends=False, stop=None, duration_s=1.0))
    not_yet = replace(planner, started_ms=None)
    assert not_yet.tick(inputs("inbox", now_ms=9999), None, READY).stop is None, "no epoch yet"
    assert planner.tick(inputs("inbox", now_ms=999), None, READY).stop is None
    assert planner.tick(inputs("inbox", now_ms=1000), None, READY).stop is StopKind.SHUTDOWN


def test_somebody_may_want_a_snapshot() -> None:
    assert not STREAMING.tick(inputs(), None, READY).wants_snapshot
    tick = STREAMING.tick(inputs(), None, READY, wants_snapshot=True)
    assert tick.wants_snapshot and not tick.wants_epoch, "that is for the coordinator to say"


def test_no_watermark_falls_back_and_the_final_one_closes_all() -> None:
    stages = {
        "behind": StageTime(reached_ms=100, watermark_ms=60),
        "ahead": StageTime(reached_ms=None, watermark_ms=60),
        "unknown": StageTime(reached_ms=None, watermark_ms=None),
    }
    after_ms = STREAMING.watermarks(stages, final=False)
    assert after_ms == {"behind": 100, "ahead": 60, "unknown": None}
    assert set(STREAMING.watermarks(stages, final=True).values()) == {FINAL_WATERMARK_MS}


@pytest.mark.parametrize(
    ("terminal", "final", "takes"), [(0, 0, True), (1, 0, False), (1, 1, True)]
)
def test_a_terminal_epoch_takes_no_input_but_the_final_one(
    terminal: bool, final: bool, takes: bool
) -> None:
    epoch = RunEpoch(1, 1, None, terminal=bool(terminal), final=bool(final))
    assert STREAMING.takes_input(epoch) is takes


def test_an_idle_job_looks_again_when_a_snapshot_is_due() -> None:
    idle = 60_000
    assert STREAMING.wait_ms(READY, 1_000, idle_ms=idle) == 200
    due = replace(READY, snapshot_due_at_ms=1_050)
    assert STREAMING.wait_ms(due, 1_000, idle_ms=idle) == 50
    assert STREAMING.wait_ms(due, 2_000, idle_ms=idle) == 1
    pending = replace(due, pending=PendingState.COMPLETING)
    assert STREAMING.wait_ms(pending, 1_000, idle_ms=idle) == 200, "whose end is heard of"


def test_the_longer_a_job_is_idle_the_rarer_it_polls() -> None:
    waits = [STREAMING.wait_ms(READY, 5_000, idle_ms=idle) for idle in (0, 100, 400, 4_000)]
    assert waits == [10, 25, 100, 200]
