"""A job whose owner is gone, as others see it: not running, and not to be asked for anything."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_jet import Jet
from dagster_jet.errors import JobFailedError, JobStateError
from dagster_jet.ownership.lease import new_lease, wall_clock_ms
from dagster_jet.ownership.liveness import LeaseWatch
from dagster_jet.ownership.record_keeper import (
    JOB_DIRECTORY,
    RecordKeeper,
    read_record,
    record_register,
)
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, StopCause
from tests.long import long_but_for

TTL_MS = 1_000
YEAR_MS = 365 * 86_400_000
DEAD_PID = 2**22 + 1
"""Process id above the kernel's largest one."""
HERE = new_lease("o", TTL_MS, "run-1")
OWNERS = {
    "dead, of this host": replace(HERE, pid=DEAD_PID),
    "silent, of another": replace(HERE, host="elsewhere", renewed_at_ms=wall_clock_ms() - 60_000),
    "silent, of a clock ahead a year": replace(
        HERE, host="elsewhere", renewed_at_ms=wall_clock_ms() + YEAR_MS
    ),
}


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


def left_by(jet: Jet, lease: Lease) -> None:
    """Writes the record of an owner that then vanished."""
    record = ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease)
    directory = jet.store.map(JOB_DIRECTORY)
    directory.put_all({directory.key("shop"): b""})
    jet.store.register(record_register("shop")).claim(4, "gone").write(record.to_bytes())


@pytest.mark.parametrize("owner", long_but_for(OWNERS, "dead", "silent, of a clock"))
def test_a_dead_job_is_not_shown_as_running(jet: Jet, owner: str) -> None:
    left_by(jet, OWNERS[owner])
    (seen,) = jet.jobs()
    assert (seen.status, seen.cause) == (JobStatus.NOT_RUNNING, StopCause.LOST)
    assert "execution 4 is dead: process" in (seen.failure or "")
    assert jet.job("shop").status is JobStatus.NOT_RUNNING
    found = read_record(jet.store, "shop")
    assert found is not None and found.status is JobStatus.RUNNING, "looking changes nothing"


@pytest.mark.parametrize("owner", OWNERS)
def test_a_request_to_it_is_refused_and_does_not_wait(jet: Jet, owner: str) -> None:
    left_by(jet, OWNERS[owner])
    began = time.monotonic()
    with pytest.raises(JobStateError, match=r"NOT_RUNNING .execution 4 is dead"):
        jet.job("shop").request_stop(StopKind.SUSPEND)
    assert time.monotonic() - began < 10 * TTL_MS / 1000


def test_whoever_waits_for_a_job_that_dies_meanwhile_is_told(jet: Jet) -> None:
    """The owner is on another host: its lease is young, but never renewed."""
    left_by(jet, replace(new_lease("o", 5 * TTL_MS, "run-1"), host="elsewhere"))
    job = jet.job("shop")
    job.request_stop(StopKind.SUSPEND)  # while it is young, also on a machine that is busy
    with pytest.raises(JobFailedError, match="execution 4 is dead"):
        job.result(60)


def test_a_living_job_is_shown_with_what_it_is_at(jet: Jet) -> None:
    owner = RecordKeeper(jet.store, "shop", TTL_MS, run_id="run-1")
    record = owner.claim(change=None)
    (seen,) = jet.jobs()
    assert (seen.status, seen.execution_id) == (JobStatus.STARTING, 1)
    watch, deadline = LeaseWatch(), time.monotonic() + 30
    while not watch.sees(seen):
        assert time.monotonic() < deadline, "the lease is not renewed"
        time.sleep(0.02)
        (seen,) = jet.jobs()
    assert seen.lease is not None and "starting for" in str(seen.lease.activity)
    owner.release(record)
