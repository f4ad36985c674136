"""One contract for a job here and elsewhere: the same assertions against both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, Job, JobConfig, JobResult, Pipeline, sinks, sources
from dagster_jet.errors import JetError, JobStateError
from dagster_jet.execution.execution import Execution
from dagster_jet.jobs import wiring
from dagster_jet.jobs.job_order import Order
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus

from .world import World, wait_until, write_input

HERE, ELSEWHERE = "here", "elsewhere"
CONFIG = JobConfig(snapshot_interval="100 ms", parallelism=1)


@dataclass
class Kind:
    """A job that runs, by the handle under test."""

    name: str
    jet: Jet
    job: Job
    owner: Job
    """The same job, as the process holds it that runs it."""
    folder: Path

    def fail(self) -> None:
        write_input(self.folder / "in", 1, [{"k": "broken"}])

    def is_running(self) -> None:
        wait_until(lambda: self.job.status is JobStatus.RUNNING, f"the job {self.name} runs")


def copied(folder: Path) -> Pipeline:
    """A row without `ts` has no event time: it fails the job."""
    p = Pipeline("copied")
    rows = p.read_from(
        sources.files(f"{folder}/in", format="json", schema="k string, ts long"), name="in"
    ).with_timestamps("ts")
    rows.write_to(sinks.files(f"{folder}/out", format="json"), name="out")
    write_input(folder / "in", 0, [{"k": "a", "ts": 1}])
    return p


@pytest.fixture(params=[HERE, ELSEWHERE])
def kind(request: pytest.FixtureRequest, world: World) -> Iterator[Kind]:
    with ExitStack() as stack:
        jet: Jet = stack.enter_context(world.jet())
        owner = jet.submit(copied(world.folder), CONFIG)
        other = jet
        if request.param == ELSEWHERE:
            wait_until(lambda: owner.record() is not None, "the job has its record")
            other = stack.enter_context(world.jet())
        found = Kind(request.param, other, other.job("copied"), owner, world.folder)
        found.is_running()
        yield found


def test_from_its_start_to_its_end(kind: Kind) -> None:
    job = kind.job
    assert job.name == kind.owner.name
    with pytest.raises(TimeoutError, match="still"):
        job.result(0.01)
    assert job.restart() is None
    kind.is_running()
    assert job.request_stop(StopKind.RESTART) is None
    kind.is_running()
    suspended = job.suspend(timeout=60)
    assert isinstance(suspended, JobResult)
    assert suspended.status is JobStatus.SUSPENDED and suspended.snapshot_id is not None
    assert job.status is JobStatus.SUSPENDED
    assert job.result(0) == suspended, "it stays what it was"
    if kind.name == ELSEWHERE:
        with pytest.raises(JobStateError, match=r"does not have its pipeline.*Submit"):
            job.resume()
    else:
        assert kind.jet.job(job.name) is job, "this process has it, and can resume it"
        assert job.resume() is None
        kind.is_running()
        cancelled = job.cancel(timeout=60)
        assert (cancelled.status, job.status) == (JobStatus.FAILED, JobStatus.FAILED)
        with pytest.raises(JobStateError, match="cannot resume: the job is FAILED"):
            job.resume()


def test_what_has_ended_is_not_stopped_again(kind: Kind) -> None:
    job = kind.job
    assert job.cancel(timeout=60).status is JobStatus.FAILED
    for ask in (job.suspend, job.cancel, job.restart, lambda: job.request_stop(StopKind.SHUTDOWN)):
        with pytest.raises(
            JobStateError, match=r"cannot (suspend|cancel|restart|shutdown): the job"
        ):
            ask()
    with pytest.raises(JobStateError, match="cannot resume: the job is FAILED"):
        job.resume()


def test_a_shutdown_leaves_it_for_anyone_to_go_on(kind: Kind) -> None:
    kind.job.request_stop(StopKind.SHUTDOWN)
    assert kind.job.result(timeout=60).status is JobStatus.NOT_RUNNING
    assert kind.job.status is JobStatus.NOT_RUNNING


def test_completed_once_its_inputs_are_over(kind: Kind) -> None:
    result = kind.job.complete(timeout=60)
    assert (result.status, result.rows_in, result.rows_out) == (JobStatus.COMPLETED, 1, 1)
    assert kind.job.status is JobStatus.COMPLETED


def test_an_error_is_raised_to_whoever_waits(kind: Kind) -> None:
    kind.fail()
    said = "no event time"
    with pytest.raises(JetError, match=said):
        kind.job.result(60)
    with pytest.raises(JetError, match=said):
        kind.job.result(0)  # it is raised each time
    assert kind.job.status is JobStatus.FAILED
    with pytest.raises(JobStateError):
        kind.job.suspend()


def test_a_restart_does_not_begin_the_time_of_a_run_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_s: list[float | None] = []
    real = wiring.wire

    def wire(order: Order, *others: Any) -> Execution:
        given_s.append(order.until.duration_s)
        return real(order, *others)

    monkeypatch.setattr(wiring, "wire", wire)
    with world.jet() as jet:
        job = jet.submit(copied(world.folder), CONFIG, until="1 hour")
        wait_until(lambda: job.status is JobStatus.RUNNING, "the job runs")
        job.restart()
        wait_until(lambda: len(given_s) == 2, "the job has restarted")
        job.request_stop(StopKind.SHUTDOWN)
        job.result(60)
    first, second = given_s
    assert first == 3600 and second is not None and second < 3600
