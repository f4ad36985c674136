"""Deleted data does not come back, and live data is not removed as left over.

Histories are played from seeds; a failure names its seed. The mutants show that the histories are
hard enough: each of these mistakes is found.
"""

import os
from typing import Any

import pytest

from dagster_jet.store import Replacement, ReplicatedMap
from dagster_jet.store.map import replicated_map
from dagster_jet.store.upkeep import orphans as orphans
from dagster_jet.store.upkeep import verification
from tests.simulation.rebalancing import Violation
from tests.simulation.removing import DeletingHistory, LeftoverHistory

SEEDS = int(os.environ.get("JET_REMOVING_HISTORIES", "200"))

Kind = type[DeletingHistory] | type[LeftoverHistory]


@pytest.mark.parametrize("kind", [DeletingHistory, LeftoverHistory])
def test_no_history_removes_too_much_or_too_little(kind: Kind) -> None:
    for seed in range(SEEDS):
        try:
            kind(seed).play()
        except BaseException as error:
            raise AssertionError(f"{kind.__name__}({seed}).play()") from error


def _at_once(members: Any, missing: Any) -> int:
    """The copy is put where nothing is, whatever became of the one it is made from."""
    return sum(
        members[one.member_id].replace_many({one.stored_key: Replacement(one.seen, one.copy)})
        for one in missing
    )


_in_rounds = ReplicatedMap._in_rounds


def _without_a_look(self: Any, done: str, keys: Any, rounds_of: Any, *call: Any) -> None:
    """Deletes without a look whether somebody has put a copy back."""
    if done != "deleted" or rounds_of == self.routing.delete_rounds:
        _in_rounds(self, done, keys, rounds_of, *call)


def _by_a_stale_table(member: Any, keys: Any, check_table: Any) -> tuple[int, int]:
    check_table()
    member.delete_many(keys)
    return len(keys), 0


def _without_a_mark(member: Any, keys: Any, check_table: Any) -> tuple[int, int]:
    copies = dict(zip(keys, member.get_many(keys), strict=True))
    check_table()
    gone = {key: Replacement(copy, None) for key, copy in copies.items()}
    return member.replace_many(gone), 0


@pytest.mark.parametrize(
    ("kind", "mistakes"),
    [
        (DeletingHistory, {(m, "restore"): _at_once for m in (replicated_map, verification)}),
        (DeletingHistory, {(ReplicatedMap, "_in_rounds"): _without_a_look}),
        (LeftoverHistory, {(orphans, "_removed"): _by_a_stale_table}),
        (LeftoverHistory, {(orphans, "_removed"): _without_a_mark}),
    ],
    ids=[
        "a repair puts back what is being deleted",
        "a delete does not look again",
        "orphans go by a stale table",
        "orphans are told by their content",
    ],
)
def test_a_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, mistakes: dict[tuple[Any, str], Any]
) -> None:
    for (place, name), mistake in mistakes.items():
        monkeypatch.setattr(place, name, mistake)
    with pytest.raises(Violation):
        for seed in range(3_000):
            kind(seed).play()
