"""A store whose members are really cut off from each other: who can reach most of them goes on, who
cannot is refused, and after healing nobody reads what the minority wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from dagster_jet import Jet, JobConfig
from dagster_jet.errors import FencedError, StoreUnavailableError
from dagster_jet.execution.events import ExecutionRestarting, SnapshotCommitted, SnapshotFailed
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.store import MapKey
from dagster_jet.store.members import member_id_of
from tests.long import long

from . import child
from .split_network import PASSWORD_IN, Network, network
from .world import World, wait_until

PATIENT = JobConfig(**child.CONFIG, restart_attempts_max=30)
ONCE = JobConfig(**child.CONFIG, restart_attempts_max=0)


@contextmanager
def drivers(
    world: World, net: Network, *sides: str, unprotected: Sequence[str] = (), backup_count: int
) -> Iterator[list[Jet]]:
    """One store, opened while the network is whole by processes that might be anywhere.

    First those on `sides`, with split-brain protection, then those on `unprotected`, without it.
    """
    with ExitStack() as stack:
        for environment in (os.environ, world.spark.sparkContext.environment):
            environment.update(PASSWORD_IN)
            for name in PASSWORD_IN:
                stack.callback(environment.pop, name, None)
        yield [
            stack.enter_context(
                Jet(
                    store=net.urls(side),
                    backup_count=backup_count,
                    spark=child.SPARK,
                    work_dir=world.folder / "work" / f"{number}",
                    lease_ttl="2 seconds",
                    split_brain_protection=number < len(sides),
                )
            )
            for number, side in enumerate([*sides, *unprotected])
        ]


def keys(jet: Jet, names: range) -> list[MapKey]:
    return [jet.store.map("values").key(str(name)) for name in names]


def put(jet: Jet, names: range, value: bytes) -> None:
    jet.store.map("values").put_all(dict.fromkeys(keys(jet, names), value))


def read(jet: Jet, names: range) -> set[bytes | None]:
    return set(jet.store.map("values").get_all(keys(jet, names)))


def assert_no_job_starts(world: World, protected: Jet, unprotected: Jet, needed: str) -> None:
    """The refusal names the members that are missing; the option makes no difference, because
    a register needs a majority anyway."""
    for jet, config in ((protected, PATIENT), (unprotected, ONCE)):
        with pytest.raises(StoreUnavailableError, match=needed) as told:
            jet.run(child.crash_pipeline(world.folder), config, until="completed")
        named = [member for member in jet.store.config.member_ids if member in str(told.value)]
        assert 0 < len(named) < len(jet.store.config.member_ids), str(told.value)


@long  # they split below; members are replaced in test_members_change.py
def test_five_split_three_to_two(world: World) -> None:
    kept, replaced, every = range(20), range(20, 40), range(40)
    with (
        network(5) as net,
        drivers(world, net, "left", "right", "right", unprotected=["right"], backup_count=2) as (
            left,
            right,
            spare,
            unprotected,
        ),
    ):
        world.fill(files=4)
        pipeline = child.crash_pipeline(world.folder)
        cut_off = right.submit(pipeline, PATIENT, on_event=world.see)
        wait_until(lambda: len(world.events_of(SnapshotCommitted)) >= 2, "the job runs")
        put(right, every, b"before")
        right.store.register("decision").claim(1, "right").write(b"before")

        net.split(left=3)
        seen = len(world.events)
        world.fill(files=2, first=4)

        # The minority: nothing starts, nothing is decided; what runs commits nothing.
        assert_no_job_starts(world, spare, unprotected, "needs 3 of 5 members")
        with pytest.raises(StoreUnavailableError, match="needs 3 of 5 members"):
            spare.store.register("decision").claim(2, "right")
        with pytest.raises(StoreUnavailableError, match="needs 3 of 5 members"):
            spare.store.repair()
        with pytest.raises(StoreUnavailableError, match="could not be written on all"):
            put(spare, every, b"minority")
        cut = set(left.store.config.member_ids[3:])
        reached = [
            k for k in keys(spare, every) if cut & {*spare.store.table.replicas[k.partition]}
        ]
        values = spare.store.map("values").get_all(reached)
        assert set(values) == {b"minority"}  # it did write something
        failures = (SnapshotFailed, ExecutionRestarting)
        wait_until(
            lambda: any(isinstance(event, failures) for event in world.events[seen:]),
            "the job that was running cannot commit",
        )

        # The majority gives the others up, takes the job over and completes it.
        assert len(left.store.repair().left) == 2
        assert left.run(pipeline, PATIENT, until="completed").status is JobStatus.COMPLETED
        world.assert_exactly_once()
        put(left, replaced, b"majority")
        left.store.register("decision").claim(3, "left").write(b"majority")
        written = world.visible()

        net.heal()
        with pytest.raises(FencedError):
            cut_off.result(60)
        for url in net.urls("left"):
            if member_id_of(url) not in left.store.table.members:
                left.store.add_member(url)
        for jet in (left, right, spare):
            jet.store.refresh()
            assert len(jet.store.table.members) == 5
            assert read(jet, kept) == {b"before"}
            assert read(jet, replaced) == {b"majority"}
            decision = jet.store.register("decision").read()
            assert decision is not None and decision.value == b"majority"
        # What the job that was cut off wrote by the former table counts for nothing, and is tidied.
        assert left.store.verify(repair=True).is_whole
        assert left.store.is_safe() and left.store.verify().is_whole
        assert world.visible() == written


@long
def test_four_split_two_to_two(world: World) -> None:
    with (
        network(4) as net,
        drivers(world, net, "left", "right", unprotected=["left", "right"], backup_count=1) as (
            left,
            right,
            *unprotected,
        ),
    ):
        world.fill(files=3)
        net.split(left=2)
        for jet, other in zip((left, right), unprotected, strict=True):
            assert_no_job_starts(world, jet, other, "needs 3 of 4 members")
            with pytest.raises(StoreUnavailableError, match="needs 3 of 4 members"):
                jet.store.repair()
        assert world.visible() == {}
        net.heal()
        result = left.run(child.crash_pipeline(world.folder), PATIENT, until="completed")
        assert result.status is JobStatus.COMPLETED
        assert left.store.verify().is_whole
    world.assert_exactly_once()


def test_members_that_were_given_up_still_count(world: World) -> None:
    """Five split 3/2, the two are given up; of the three one is cut off: two have a majority of
    what is left, and could decide; a protected job goes by the five that it has seen."""
    with network(5) as net, drivers(world, net, "left", backup_count=1) as (left,):
        pipeline = child.crash_pipeline(world.folder)
        world.fill(files=2)
        left.run(pipeline, PATIENT, until="drained")
        for member_id in left.store.config.member_ids[3:]:
            left.store.remove_member(member_id)
        net.split(left=2)
        world.fill(files=2, first=2)
        with pytest.raises(StoreUnavailableError, match=r"2 members are reachable.*of the 5"):
            left.run(
                pipeline,
                ONCE,
                until="completed",
            )
        net.heal()
        left.run(pipeline, PATIENT, until="completed")
    world.assert_exactly_once()
