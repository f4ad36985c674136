"""A standby takes a job over, and only then: rows are exact, and never two processes decide."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dagster_jet import Jet, Job, JobConfig, StopKind
from dagster_jet.events import ExecutionStarted, StandingBy
from dagster_jet.snapshot.record import JobStatus

from . import child
from .world import World, wait_until

pytestmark = pytest.mark.usefixtures("interpreted")


def stand_by(world: World, jet: Jet) -> Job:
    """Returns once the standby waits for another process."""
    job = jet.submit(
        child.crash_pipeline(world.folder),
        JobConfig(**child.CONFIG),
        on_event=world.see,
        standby=True,
    )
    wait_until(lambda: bool(world.events_of(StandingBy)), "it stands by")
    return job


def test_a_killed_owner_is_replaced(world: World) -> None:
    """It dies in phase 2: one sink has committed the epoch, the others have not."""
    world.fill(files=1)
    first = world.start_child("files.commit.file:3=kill", until="stopped")
    with world.jet() as jet:
        wait_until(lambda: jet.job(child.JOB).status is JobStatus.RUNNING, "the child runs")
        job = stand_by(world, jet)
        assert not world.events_of(ExecutionStarted)
        world.fill(files=4, first=1)
        first.join(world.patience_s)
        assert first.exitcode == -9, world.child_output.read_text()
        wait_until(lambda: bool(world.events_of(ExecutionStarted)), "it takes over")
        job.request_stop(StopKind.COMPLETE)
        result = job.result(timeout=120)
    assert (result.status, result.restarts) == (JobStatus.COMPLETED, 1)
    world.assert_exactly_once()


def test_an_owner_that_shuts_down_is_replaced_and_one_that_completes_is_not(world: World) -> None:
    world.fill()
    pipeline, config = child.crash_pipeline(world.folder), JobConfig(**child.CONFIG)
    with ExitStack() as open_jets:
        first = world.jet()
        first.submit(pipeline, config)
        wait_until(lambda: first.job(child.JOB).status is JobStatus.RUNNING, "the first runs")
        second = stand_by(world, open_jets.enter_context(world.jet()))
        first.close()
        wait_until(lambda: bool(world.events_of(ExecutionStarted)), "the second takes over")
        world.events.clear()
        third = stand_by(world, open_jets.enter_context(world.jet()))
        second.request_stop(StopKind.COMPLETE)
        assert second.result(timeout=120).status is JobStatus.COMPLETED
        assert third.result(timeout=60).status is JobStatus.COMPLETED
        assert [e.execution_id for e in world.events_of(ExecutionStarted)] == []
    world.assert_exactly_once()
