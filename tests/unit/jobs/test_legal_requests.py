"""Every request to a job, in every status, on a real store. No Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dagster_jet.errors import JobStateError
from dagster_jet.jobs.legal_requests import LEGAL, JobRequest, check
from dagster_jet.jobs.remote_job import RemoteJob
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.ownership.supervision import Intent, read_supervision, set_intent
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause
from dagster_jet.store import Store, StoreConfig
from dagster_jet.system.process import start_ticks

#              suspend resume restart shutdown complete cancel export cancel_and_export
TABLE = {
    "NOT_RUNNING": "yes yes no  no  no  no  yes no",
    "STARTING":    "yes no  yes yes yes yes yes yes",
    "RUNNING":     "yes no  yes yes yes yes yes yes",
    "COMPLETING":  "yes no  yes yes yes yes yes yes",
    "SUSPENDED":   "no  yes no  no  no  no  yes no",
    "COMPLETED":   "no  no  no  no  no  no  yes no",
    "FAILED":      "no  no  no  no  no  no  yes no",
}  # fmt: skip
CELLS = [
    (JobStatus(status), asked, answer == "yes")
    for status, row in TABLE.items()
    for asked, answer in zip(JobRequest, row.split(), strict=True)
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig((f"file://{tmp_path}/a",), backup_count=0)) as store:
        yield store


def test_every_status_is_in_the_table() -> None:
    in_records = {status.value for status in JobStatus} - {"DRAINED"}
    assert set(TABLE) == in_records == {s.value for s in LEGAL}


@pytest.mark.parametrize(("status", "asked", "legal"), CELLS)
def test_a_cell(status: JobStatus, asked: JobRequest, legal: bool) -> None:
    if legal:
        check("j", asked, status, None, Intent.ALWAYS_ON)
        return
    with pytest.raises(JobStateError, match=f"cannot {asked.value}: the job is {status.value}"):
        check("j", asked, status, None, Intent.ALWAYS_ON)


def test_a_living_job_that_would_stay_down_can_be_resumed() -> None:
    check("j", JobRequest.RESUME, JobStatus.RUNNING, None, Intent.PAUSED)


@pytest.mark.parametrize("status", [JobStatus.NOT_RUNNING, JobStatus.RUNNING])
def test_a_job_whose_runs_end_by_themselves_is_launched_and_not_resumed(
    store: Store, status: JobStatus
) -> None:
    """Failed before: it was called resumed, and stayed down for ever."""
    job = write(store, status)
    set_intent(store, "j", Intent.DRAINED)
    with pytest.raises(JobStateError, match=r"Its runs end by themselves.* Launch it") as caught:
        job.resume()
    assert f"the job is {status.value} and not paused" in str(caught.value)
    assert wanted(store) == (Intent.DRAINED, 0)
    set_intent(store, "j", Intent.PAUSED)
    job.resume()
    assert wanted(store) == (Intent.DRAINED, 3), "its schedule starts it again"


def test_a_suspended_job_of_a_schedule_is_resumed(store: Store) -> None:
    job = write(store, JobStatus.SUSPENDED, StopCause.ERROR, "disk full")
    set_intent(store, "j", Intent.DRAINED)
    job.resume()
    assert wanted(store) == (Intent.DRAINED, 3)


def no_session() -> SparkSession:
    raise AssertionError("this test has no Spark")


def write(
    store: Store,
    status: JobStatus,
    cause: StopCause | None = None,
    failure: str | None = None,
    run_id: str | None = "run-1",
    execution_id: int = 3,
    pid: int | None = None,
) -> RemoteJob:
    lease = new_lease("o", 10_000, run_id) if status.is_live else None
    if lease is not None and pid is not None:
        started = start_ticks(pid) or 0
        lease = replace(lease, pid=pid, process_started_at_ms=started)
    record = ExecutionRecord("j", execution_id, status, lease=lease, cause=cause, failure=failure)
    store.register(record_register("j")).claim(execution_id, "test").write(record.to_bytes())
    return RemoteJob(store, "j", no_session)


def wanted(store: Store) -> tuple[Intent, int]:
    supervision = read_supervision(store, "j")
    assert supervision is not None
    return supervision.intent, supervision.resumed_execution


def test_one_that_is_down_between_two_runs_is_suspended_by_what_is_wanted(store: Store) -> None:
    job = write(store, JobStatus.NOT_RUNNING)
    assert job.suspend(timeout=1).status is JobStatus.NOT_RUNNING
    assert wanted(store) == (Intent.PAUSED, 0)


def test_one_that_is_down_between_two_runs_of_a_crash_loop_is_suspended(store: Store) -> None:
    """Failed before: the old failure was raised, although the job was paused."""
    job = write(store, JobStatus.NOT_RUNNING, StopCause.ERROR, "disk full")
    assert job.suspend(timeout=1).status is JobStatus.NOT_RUNNING
    assert wanted(store) == (Intent.PAUSED, 0)


def test_who_suspends_a_living_one_is_heard_whatever_becomes_of_it(store: Store) -> None:
    job = write(store, JobStatus.RUNNING)
    with pytest.raises(TimeoutError):
        job.suspend(timeout=0)
    assert wanted(store)[0] is Intent.PAUSED, "its execution may die before it has heard"


def test_a_shutdown_is_carried_out_when_another_process_has_the_job(store: Store) -> None:
    """Failed before: a standby had the job so soon that nobody saw it down, and who had asked
    waited until the time was over."""
    job = write(store, JobStatus.RUNNING)
    job.request_stop(StopKind.SHUTDOWN)
    write(store, JobStatus.RUNNING, execution_id=4)
    with pytest.raises(TimeoutError):
        job.result(0.3)  # a restart in the same process, which ends soon
    write(store, JobStatus.STARTING, execution_id=5, pid=os.getppid())
    assert job.result(0.3).status is JobStatus.STARTING
    with pytest.raises(TimeoutError):
        RemoteJob(store, "j", no_session).result(0.3)  # it has not asked for anything
    with pytest.raises(TimeoutError):
        job.suspend(0.3)  # of the execution that has the job now


def test_what_a_program_runs_is_wanted_by_nobody_else(store: Store) -> None:
    job = write(store, JobStatus.RUNNING, run_id=None)
    with pytest.raises(TimeoutError):
        job.suspend(timeout=0)
    assert read_supervision(store, "j") is None


def test_a_suspended_one_is_resumed_for_its_supervisor(store: Store) -> None:
    job = write(store, JobStatus.SUSPENDED, StopCause.ERROR, "disk full")
    set_intent(store, "j", Intent.PAUSED)
    job.resume()
    assert wanted(store) == (Intent.ALWAYS_ON, 3)


def test_without_a_supervisor_there_is_nobody_who_would_resume_it(store: Store) -> None:
    job = write(store, JobStatus.SUSPENDED)
    with pytest.raises(JobStateError, match="no supervisor has ever started it"):
        job.resume()
    assert read_supervision(store, "j") is None


def test_a_job_that_nobody_knows(store: Store) -> None:
    with pytest.raises(JobStateError, match="unknown"):
        RemoteJob(store, "j", no_session).resume()
