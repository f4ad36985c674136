"""A job that runs while its store's members change, and the verdict on it: the rows are exactly
right, and no execution began from scratch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dagster_jet import JobConfig
from dagster_jet.execution.events import EpochCompleted, ExecutionStarted, SnapshotCommitted
from dagster_jet.jobs.pipeline_job import PipelineJob
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.store import Store

from . import child
from .world import World, wait_until

FAST = {"scale_up_delay": "200 ms", "member_timeout": "off"}
"""Settings under which only the test repairs the store."""


@contextmanager
def running(
    world: World,
    members: Sequence[str] = "abc",
    backup_count: int = 1,
    restart_attempts_max: int = 30,
    **settings: str,
) -> Iterator[tuple[PipelineJob, Store]]:
    """A job on the store, and the store as an operator's process has it open. `settings`: of the
    job's `Jet`."""
    world.fill(files=4)
    with (
        world.jet(members, backup_count, **{**FAST, **settings}) as jet,
        world.jet(members, backup_count) as operator,
    ):
        job = jet.submit(
            child.crash_pipeline(world.folder),
            JobConfig(**child.CONFIG, restart_attempts_max=restart_attempts_max),
            on_event=world.see,
        )
        wait_until(lambda: len(world.events_of(SnapshotCommitted)) >= 3, "the job runs")
        yield job, operator.store
        assert job.complete(60).status is JobStatus.COMPLETED
        operator.store.refresh()
        assert operator.store.is_safe()
        assert operator.store.verify().is_whole
    world.assert_exactly_once()
    scratch = [e for e in world.events_of(ExecutionStarted)[1:] if e.restored_snapshot_id is None]
    assert scratch == []


def feed(world: World, first: int) -> None:
    """Adds input and waits until the job has read it: it is alive on the store as it is now."""
    epochs = len(world.events_of(EpochCompleted))
    world.fill(files=3, first=first)
    wait_until(lambda: len(world.events_of(EpochCompleted)) > epochs, "the job goes on")
