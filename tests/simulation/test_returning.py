"""Members that come back with old data are recognised before what they have is believed.

Histories are played from seeds; a failure names its seed. The mutants show that the histories are
hard enough: each of these mistakes is found.
"""

import os
from dataclasses import replace
from typing import Any

import pytest

from dagster_jet.store import store as opened
from dagster_jet.store.quorum import acceptor_on_member
from dagster_jet.store.register import Reply, acceptor_step
from dagster_jet.store.upkeep import administration, verification
from tests.long import long
from tests.simulation.rebalancing import Violation
from tests.simulation.returning import ReturningHistory

SEEDS = int(os.environ.get("JET_RETURNING_HISTORIES", "15"))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (administration, verification):
        monkeypatch.setattr(module, "_PAUSE_SECONDS", 0)


def test_no_history_believes_a_member_that_came_back_older() -> None:
    returned = 0
    for seed in range(SEEDS):
        history = ReturningHistory(seed)
        try:
            history.play()
        except BaseException as error:
            raise AssertionError(f"ReturningHistory({seed}).play()") from error
        returned += history.returned
    assert returned > SEEDS / 2


def _unchecked(state: Any, request: Any, floor: int, member: str) -> Any:
    new, reply = acceptor_step(state, request, floor, "")
    return new, replace(reply, state=replace(reply.state, known_changes=()))


def _without_known_changes(state: Any, request: Any, floor: int, member: str) -> Any:
    return acceptor_step(state, replace(request, known_changes=()), floor, member)


def _kept(state: Any, request: Any, floor: int, member: str) -> tuple[Any, Reply]:
    new, reply = _without_known_changes(state, request, floor, member)
    return new, replace(reply, request=request)


def _refused_and_kept(member: Any) -> None:
    """Does not refuse a member that came back older: it keeps its identity."""


def _by_who_is_read_first(key: bytes, copies: Any, sealer: Any) -> bytes:
    return copies[0]


@pytest.mark.parametrize(
    "mistakes",
    [
        {(acceptor_on_member, "acceptor_step"): _unchecked},
        {(acceptor_on_member, "acceptor_step"): _kept},
        {(acceptor_on_member, "disown"): _refused_and_kept},
        pytest.param(
            {
                (verification, "reconcile"): _by_who_is_read_first,
                (opened, "disown_rolled_back_members"): lambda configuration: None,
                (administration, "disown_rolled_back_members"): lambda configuration: None,
            },
            marks=long,
        ),
    ],
    ids=[
        "changes are not compared",
        "members do not pass on what they heard",
        "who is older keeps its identity",
        "a repair decides by what it reads first",
    ],
)
def test_a_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, mistakes: dict[tuple[Any, str], Any]
) -> None:
    for (place, name), mistake in mistakes.items():
        monkeypatch.setattr(place, name, mistake)
    with pytest.raises(Violation):
        for seed in range(500):
            ReturningHistory(seed).play()
