"""Partitions move while they are written, deleted, read and copied: nothing is lost or comes back.

Histories are played from seeds; a failure names its seed. The mutants show that the histories are
hard enough: each of these mistakes is found.
"""

import os
from typing import Any

import pytest

from dagster_jet.store import ReplicaRouting
from dagster_jet.store.map import replicated_map
from dagster_jet.store.upkeep import migration
from tests.simulation.rebalancing import History, VersionedHistory, Violation

SEEDS = int(os.environ.get("JET_REBALANCING_HISTORIES", "200"))


@pytest.mark.parametrize("kind", [History, VersionedHistory])
def test_every_history_keeps_every_finished_write(kind: type[History]) -> None:
    for seed in range(SEEDS):
        try:
            kind(seed).play()
        except BaseException as error:
            raise AssertionError(f"{kind.__name__}({seed}).play()") from error


def _receivers_first(routing: ReplicaRouting, partition: int) -> tuple[tuple[str, ...], ...]:
    return (routing.receivers(partition), routing.holders(partition))


def _receivers_not_deleted(routing: ReplicaRouting, partition: int) -> tuple[tuple[str, ...], ...]:
    holders = routing.holders(partition)
    return (holders[1:], holders[:1])


def _look_once(self: object, keys: object, *, look: object = migration._Copying.equalise) -> int:
    class Ended(Exception):
        pass

    looked = []

    def get_many(asked: object) -> object:
        if looked:
            raise Ended
        looked.append(asked)
        return member.get_many(asked)

    member = self.members[self.receiver]  # type: ignore[attr-defined]

    class OnceMember:
        replace_many, delete_many = member.replace_many, member.delete_many

    once = OnceMember()
    once.get_many = get_many  # type: ignore[attr-defined]
    self.members = {**self.members, self.receiver: once}  # type: ignore[attr-defined]
    try:
        return look(self, keys)
    except Ended:
        return 0
    finally:
        self.members = {**self.members, self.receiver: member}  # type: ignore[attr-defined]


def _put_back_at_once(members: Any, missing: Any) -> int:
    for one in missing:
        members[one.member_id].put_many({one.stored_key: one.copy})
    return len(missing)


@pytest.mark.parametrize(
    ("place", "name", "mistake"),
    [
        (ReplicaRouting, "put_rounds", _receivers_first),
        (ReplicaRouting, "delete_rounds", _receivers_not_deleted),
        (ReplicaRouting, "put_rounds", lambda routing, p: (routing.holders(p),)),
        (migration._Copying, "equalise", _look_once),
        (replicated_map, "restore", _put_back_at_once),
    ],
    ids=[
        "receivers first",
        "delete forgets receivers",
        "put forgets receivers",
        "look once",
        "a read puts back what is being deleted",
    ],
)
def test_a_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, mistake: object
) -> None:
    monkeypatch.setattr(place, name, mistake)
    with pytest.raises(Violation):
        for seed in range(2_000):
            History(seed).play()
