"""A store whose members are really cut off from each other: who can see most of them goes on, who
cannot is refused, and after healing nobody reads what the minority wrote. Rows as multisets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dagster_jet import Jet, JobConfig
from dagster_jet.engine.events import SnapshotCommitted
from dagster_jet.errors import JetError, StoreUnavailableError
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.store import ReplicatedMap

from . import child
from .split_network import SIDES, Network, network
from .world import World, wait_until

PROTECTED = JobConfig(**child.CONFIG, split_brain_protection=True, restart_attempts_max=1)
UNPROTECTED = JobConfig(**child.CONFIG, restart_attempts_max=1)


@contextmanager
def two_sides(world: World, net: Network, backup_count: int) -> Iterator[tuple[Jet, Jet]]:
    """Two drivers on one store, as on two machines."""
    left, right = (
        Jet(
            store=net.urls(side),
            backup_count=backup_count,
            spark=child.SPARK,
            work_dir=world.folder / "work" / side,
        )
        for side in SIDES
    )
    with left, right:
        yield left, right


def put(values: ReplicatedMap, names: range, value: bytes) -> None:
    values.put_all({values.key(str(name)): value for name in names})


def read(values: ReplicatedMap, names: range) -> set[bytes | None]:
    return set(values.get_all([values.key(str(name)) for name in names]))


def test_five_split_three_to_two(world: World) -> None:
    pipeline = child.crash_pipeline(world.folder)
    kept, replaced = range(20), range(20, 40)
    with network(5) as net, two_sides(world, net, backup_count=2) as (left, right):
        world.fill(files=4)
        cut_off = right.submit(pipeline, PROTECTED, on_event=world.see)
        wait_until(lambda: len(world.events_of(SnapshotCommitted)) >= 2, "the job runs")
        put(right.map("values"), range(40), b"before")
        register = right.store.register("decision")
        assert register.claim(1, "right").write(b"before") is None

        net.split(left=3)
        world.fill(files=2, first=4)

        # The minority: its job ends and says why, and no other may start; nothing is decided.
        with pytest.raises(StoreUnavailableError, match="needs 3 of 5 members") as told:
            cut_off.result(60)
        unreachable = [member for member in left.store.config.member_ids if member in str(told.value)]
        assert len(unreachable) == 3
        for config in (PROTECTED, UNPROTECTED):
            with pytest.raises(StoreUnavailableError, match="needs 3 of 5 members"):
                right.run(pipeline, config, until="completed")
        with pytest.raises(StoreUnavailableError, match="needs 3 of 5 members"):
            register.claim(2, "right")
        with pytest.raises(StoreUnavailableError, match="needs 3 of 5 members"):
            right.store.repair()
        with pytest.raises(StoreUnavailableError, match="could not be written on all"):
            put(right.map("values"), range(40), b"minority")
        assert b"minority" in read(right.map("values"), range(40))  # it did reach two members

        # The majority gives the others up, takes the job over and completes it.
        assert len(left.store.repair().left) == 2
        assert left.run(pipeline, PROTECTED, until="completed").status is JobStatus.COMPLETED
        world.assert_exactly_once()
        put(left.map("values"), replaced, b"majority")
        left.store.register("decision").claim(3, "left").write(b"majority")

        net.heal()
        for url in net.urls("left"):
            if url_is_away(left, url):
                left.store.add_member(url)
        before = world.visible()
        right.store.refresh()
        for jet in (left, right):
            assert len(jet.store.table.members) == 5
            assert read(jet.map("values"), kept) == {b"before"}
            assert read(jet.map("values"), replaced) == {b"majority"}
            found = jet.store.register("decision").read()
            assert found is not None and found.value == b"majority"
            assert jet.run(pipeline, PROTECTED, until="completed").status is JobStatus.COMPLETED
            assert jet.store.is_safe() and jet.store.verify().is_whole
        assert world.visible() == before
        world.assert_exactly_once()
