"""A standby takes a job over, and only then: rows are exact, and never two processes decide."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dagster_jet import Jet, Job, JobConfig, Pipeline, Stage, StopKind, sinks
from dagster_jet.connectors.files.files_source import FilesSource
from dagster_jet.events import ExecutionStarted, StandingBy
from dagster_jet.execution.stopping import StopSignal, parse_until
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.standby import Standby
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.ownership.succession import Succession
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.start_options import StartOptions
from tests.long import long

from . import child, large_crash_child
from .standalone import standalone
from .world import World, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REGISTERED = "Registered app "
"""Text in the log of Spark's master for each application that takes cores."""


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
    """The owner dies in phase 2: one sink has committed the epoch, the others have not."""
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


@long  # a killed owner is replaced above
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


class LeftAlone(FilesSource):
    """A source whose place only a start may ask."""

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> FilesSource:
        raise AssertionError(f"{job} has not started")


def test_it_analyses_its_pipeline_before_it_has_the_job(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An analysis that fails does not end the standby: the start repeats it. Functions of the
    user's are called by a start only."""
    caplog.set_level(logging.INFO, "dagster_jet")
    calls: list[str] = []

    def looked_at(rows: DataFrame) -> DataFrame:
        calls.append("transform")
        return rows

    def stands_by(name: str, chosen: Callable[[Stage], Stage]) -> str:
        p = Pipeline(name)
        source = LeftAlone(str(world.folder / "in"), "json", "k string")
        rows = chosen(p.read_from(source, name="in"))
        rows.write_to(sinks.files(str(world.folder / "out"), format="json"), name="out")
        until, work_dir = parse_until("stopped"), world.folder / "work"
        order = Order(name, p.graph, JobConfig(), StartOptions(), until, jet.store, work_dir)
        caplog.clear()
        standby = Standby(order, StopSignal(), world.see, None)
        assert standby.wait() is Succession.TAKES_OVER, "nobody has the job"
        assert read_record(jet.store, name) is None, "it writes nothing to the store"
        return caplog.text

    failed = "its pipeline cannot be analysed yet"
    with world.jet() as jet:
        assert failed not in stands_by("rehearsed", lambda rows: rows.select("k"))
        assert failed in stands_by("refused", lambda rows: rows.select("nobody_has_it"))
        assert failed not in stands_by("left", lambda rows: rows.transform(looked_at).select("no"))
        assert not calls


class OnACluster(World):
    driver = staticmethod(large_crash_child.main)
    patience_s = 600


@long  # six JVMs start
def test_on_a_cluster_it_holds_no_core_and_takes_all_when_its_owner_dies(world: World) -> None:
    world = OnACluster(world.folder, world.fail_points, world.spark)
    world.child_output.touch()
    world.fill(files=1)
    with standalone(world.folder / "spark", workers=1) as settings, world.jet() as jet:
        order = {"until": "stopped", "spark": dict(settings)}
        log, job = world.folder / "spark" / "master.log", jet.job(child.JOB)

        def is_new(execution_id: int) -> bool:
            assert "ended by" not in world.child_output.read_text()
            record = world.record()
            runs = record is not None and record.status is JobStatus.RUNNING
            return runs and record.execution_id > execution_id

        first = world.start_child("", own_jvm=True, **order)
        wait_until(lambda: is_new(0), "the owner runs", world.patience_s)
        order["start"] = {"standby": True}
        second = world.start_child("", own_jvm=True, **order)
        try:
            said = world.child_output.read_text
            wait_until(lambda: "StandingBy(" in said(), "it stands by", world.patience_s)
            assert log.read_text().count(REGISTERED) == 1, "only the owner is on the cluster"
            first.kill()
            world.fill(files=4, first=1)
            wait_until(lambda: is_new(1), "it takes over", world.patience_s)
            assert log.read_text().count(REGISTERED) == 2
            assert job.complete(world.patience_s).restarts == 1
            second.join(world.patience_s)
            assert second.exitcode == 0, world.child_output.read_text()
        finally:
            first.kill()
            second.kill()
    world.assert_exactly_once()
