"""A standby takes over by these rules: a table of records, and a clock that the test sets."""

from __future__ import annotations

import os

import pytest

from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.succession import Succession, SuccessionWatch
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, StopCause

WAITS, TAKES_OVER, ENDS = Succession.WAITS, Succession.TAKES_OVER, Succession.ENDS


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lease(**changed: object) -> Lease:
    from dataclasses import replace

    return replace(new_lease("owner", 10_000, None), **changed)


def live(lease: Lease | None) -> ExecutionRecord:
    return ExecutionRecord("j", 1, JobStatus.RUNNING, lease=lease)


def ended(status: JobStatus, cause: StopCause | None) -> ExecutionRecord:
    return ExecutionRecord("j", 1, status, cause=cause)


@pytest.mark.parametrize(
    ("status", "cause", "wanted"),
    [
        (JobStatus.NOT_RUNNING, StopCause.SHUTDOWN, TAKES_OVER),
        (JobStatus.NOT_RUNNING, StopCause.RESTART, WAITS),
        (JobStatus.NOT_RUNNING, StopCause.ERROR, WAITS),
        (JobStatus.NOT_RUNNING, StopCause.GAVE_UP, ENDS),
        (JobStatus.NOT_RUNNING, StopCause.DELETE, ENDS),
        (JobStatus.SUSPENDED, StopCause.SUSPEND, ENDS),
        (JobStatus.COMPLETED, StopCause.COMPLETE, ENDS),
        (JobStatus.FAILED, StopCause.CANCEL, ENDS),
        (JobStatus.FAILED, StopCause.ERROR, ENDS),
    ],
)
def test_a_job_that_has_ended(status: JobStatus, cause: StopCause, wanted: Succession) -> None:
    assert SuccessionWatch(Clock()).sees(ended(status, cause)) is wanted


def test_a_job_that_never_ran() -> None:
    assert SuccessionWatch(Clock()).sees(None) is TAKES_OVER


def test_an_owner_whose_process_is_gone() -> None:
    dead = lease(process_started_at_ms=lease().process_started_at_ms + 1)  # another's pid
    watch = SuccessionWatch(Clock())
    assert watch.sees(live(dead)) is TAKES_OVER
    assert watch.expired == dead


def test_an_owner_on_another_host_is_dead_after_its_time_to_live() -> None:
    clock = Clock()
    watch = SuccessionWatch(clock)
    there = lease(host="elsewhere", pid=os.getpid())
    assert watch.sees(live(there)) is WAITS
    clock.now = 9.9
    assert watch.sees(live(there)) is WAITS
    renewed = lease(host="elsewhere", renewed_at_ms=there.renewed_at_ms + 1)
    assert watch.sees(live(renewed)) is WAITS
    clock.now = 19.8
    assert watch.sees(live(renewed)) is WAITS
    assert watch.expired is None
    clock.now = 20.0
    assert watch.sees(live(renewed)) is TAKES_OVER
    assert watch.expired == renewed


def test_a_process_that_begins_no_other_execution_within_a_minute_is_replaced() -> None:
    clock = Clock()
    watch = SuccessionWatch(clock)
    failed = ended(JobStatus.NOT_RUNNING, StopCause.ERROR)
    assert watch.sees(failed) is WAITS
    clock.now = 59
    assert watch.sees(failed) is WAITS
    assert watch.sees(live(lease())) is WAITS  # it goes on
    clock.now = 61
    assert watch.sees(failed) is WAITS
    clock.now = 121
    assert watch.sees(failed) is TAKES_OVER


@pytest.mark.parametrize("intent", [Intent.PAUSED, Intent.DRAINED])
def test_a_job_that_nobody_wants_to_run(intent: Intent) -> None:
    """Failed before: a person cancelled the run, and the standby took the job over."""
    watch, shut_down = SuccessionWatch(Clock()), ended(JobStatus.NOT_RUNNING, StopCause.SHUTDOWN)
    assert watch.sees(live(lease()), Supervision("j", intent=intent)) is WAITS, "it still ends"
    assert watch.sees(shut_down, Supervision("j", intent=intent)) is ENDS
    assert watch.sees(shut_down, Supervision("j")) is TAKES_OVER


def test_a_job_that_was_deleted() -> None:
    watch = SuccessionWatch(Clock())
    assert watch.sees(live(lease())) is WAITS
    assert watch.sees(None) is ENDS


def test_a_standby_that_another_one_replaces() -> None:
    wanted = Supervision("j", replaced_standbys=("run-3",))
    assert SuccessionWatch(Clock(), "run-3").sees(live(lease()), wanted) is ENDS
    assert SuccessionWatch(Clock(), "run-4").sees(live(lease()), wanted) is WAITS
    assert SuccessionWatch(Clock()).sees(live(lease()), wanted) is WAITS, "of no orchestrator"
