"""A job on Redis servers that keep nothing beyond their process: who is killed has lost everything,
as many at once as there are backups. The verdict is the rows, and that no execution begins from
scratch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest

from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import (
    ExecutionRestarting,
    MembersRepaired,
    SnapshotCommitted,
    SnapshotFailed,
)
from dagster_jet.store import Store
from dagster_jet.store.members import member_id_of
from dagster_jet.store.upkeep.administration import Changes
from tests.long import long
from tests.servers.members import RedisServer

from .running_job import feed, running
from .world import World, wait_until


@contextmanager
def redis_servers(count: int) -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(count)]


def urls(servers: Sequence[RedisServer]) -> list[str]:
    return [f"{server.url}?connect_timeout=0.5&timeout=2" for server in servers]


def lose(world: World, servers: Sequence[RedisServer], *, frozen_before: int) -> None:
    """Kills them, wakes tasks that were frozen, and waits until the job has noticed: a snapshot
    that needs a lost server fails, and so does an execution that is just starting."""

    def noticed() -> int:
        return len(world.events_of(SnapshotFailed)) + len(world.events_of(ExecutionRestarting))

    def is_noticed() -> bool:
        for process in world.fail_points.frozen[frozen_before:]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        return noticed() > before

    before = noticed()
    for server in servers:
        server.kill()
    wait_until(is_noticed, "the loss is noticed")


def has_more(world: World, kind: type[object], than: int) -> bool:
    return len(world.events_of(kind)) > than


def repair(world: World, store: Store, *, first: int) -> Changes:
    """Repairs the store; on return the job has committed with the members that the store has
    now."""
    changes = store.repair()
    assert changes.verified is not None and changes.verified.is_whole
    commits = len(world.events_of(SnapshotCommitted))
    world.fill(files=2, first=first)
    wait_until(lambda: len(world.events_of(SnapshotCommitted)) > commits, "the job goes on")
    return changes


@pytest.mark.parametrize(
    ("members", "backup_count", "moment"),
    [
        pytest.param(3, 1, "chunks.after:1", marks=long),  # as unit/store/test_redis_store.py
        pytest.param(5, 2, "chunks.before:2", marks=long),
    ],
)
def test_servers_are_killed_during_a_snapshot(
    world: World, members: int, backup_count: int, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers are killed, as many at once as there are backups. They come back empty; then as many
    others are killed."""
    monkeypatch.setattr(
        epoch_driver, "FEW_GROUPS", -1
    )  # a task per shard: some write, some have not
    frozen_before = len(world.fail_points.frozen)
    with (
        redis_servers(members) as servers,
        running(world, urls(servers), backup_count) as (_, store),
    ):
        first, second = servers[:backup_count], servers[backup_count : 2 * backup_count]

        with world.rules_in_workers(f"{moment}=freeze"):
            world.fill(files=2, first=4)
            wait_until(
                lambda: len(world.fail_points.frozen) > frozen_before,
                "of the snapshot's chunks some are written, and no task has acknowledged any",
            )
        lose(world, first, frozen_before=frozen_before)
        for server in first:
            server.restart(empty=True)
        changes = repair(world, store, first=6)
        assert changes.readmitted == sorted(member_id_of(server.url) for server in first)

        world.fill(files=2, first=8)
        lose(world, second, frozen_before=frozen_before)
        changes = repair(world, store, first=10)
        assert changes.left == sorted(member_id_of(server.url) for server in second)


@long
def test_a_server_is_killed_for_good_under_load_and_nobody_is_there(world: World) -> None:
    """The job repairs around it, although it may fail but twice; a second loss later, too."""
    with (
        redis_servers(4) as servers,
        running(world, urls(servers), 1, 2, member_timeout="1 second") as (job, store),
    ):
        for number, lost in enumerate(servers[:2], 1):
            world.fill(files=3, first=10 * number)
            lost.kill()
            world.fill(files=3, first=10 * number + 5)
            is_done = partial(has_more, world, MembersRepaired, number - 1)
            wait_until(is_done, "the job repairs by itself")
            commits = len(world.events_of(SnapshotCommitted))
            feed(world, 10 * number + 8)
            wait_until(partial(has_more, world, SnapshotCommitted, commits), "it commits")
        assert not job.done.is_set()
        store.refresh()
        left = {one.member_id for one in store.status().members}
        assert left == {member_id_of(server.url) for server in servers[2:]}
