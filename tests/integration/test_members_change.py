"""Members join, leave and are lost under a running job. The verdict is the rows, and that no
execution begins from scratch."""

from __future__ import annotations

from dagster_jet.execution.events import ExecutionRestarting, ExecutionStarted, SnapshotFailed
from tests.long import long

from .running_job import feed, running
from .world import World, wait_until


def test_a_member_joins_and_the_job_moves_to_the_new_table(world: World) -> None:
    with running(world) as (job, store):
        store.add_member(f"file://{world.folder}/store/d")
        wait_until(lambda: job.record().members_max == 4, "an execution has seen the new member")
        feed(world, 4)
        done = f"of {job.name} the last restart was graceful"
        wait_until(lambda: job._store.table == store.table, done)
        feed(world, 7)
    reasons = [e.reason for e in world.events_of(ExecutionRestarting)]
    assert all("members have changed" in reason for reason in reasons), reasons


@long
def test_a_member_joins_and_nobody_wants_a_restart(world: World) -> None:
    """Without scaling the registers' move is the only restart."""
    with running(world, scale_up_delay="off") as (_, store):
        store.add_member(f"file://{world.folder}/store/d")
        feed(world, 4)
        wait_until(lambda: len(world.events_of(ExecutionStarted)) == 2, "it has restarted once")
        feed(world, 7)
    assert len(world.events_of(ExecutionStarted)) == 2


@long
def test_a_member_leaves(world: World) -> None:
    with running(world) as (_, store):
        store.remove_member(f"file://{world.folder}/store/b")
        feed(world, 4)


def is_noticed(world: World) -> bool:
    return bool(world.events_of(SnapshotFailed) or world.events_of(ExecutionRestarting))


def test_a_member_is_lost_and_the_store_is_repaired_around_it(world: World) -> None:
    """Snapshots fail, or the job restarts, until somebody repairs; then it goes on."""
    with running(world) as (_, store):
        world.lose_member("b")
        world.fill(files=3, first=4)
        wait_until(lambda: is_noticed(world), "the loss is noticed")
        store.remove_member(f"file://{world.folder}/store/b")
        feed(world, 7)


@long
def test_a_member_comes_back_empty_and_is_filled_again(world: World) -> None:
    with running(world) as (_, store):
        world.lose_member("b")
        world.fill(files=3, first=4)
        wait_until(lambda: is_noticed(world), "the loss is noticed")
        (world.folder / "store" / "b").mkdir()
        assert store.repair().readmitted == [f"file://{world.folder}/store/b"]
        feed(world, 7)
