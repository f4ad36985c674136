"""A store that is not whole admits only some jobs."""

from __future__ import annotations

import pytest

from dagster_jet.errors import Reaction, StoreUnavailableError
from dagster_jet.ownership.admission import check_admission, quorum
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from dagster_jet.store import MemberStatus, StoreStatus


def status(reachable: int, away: int = 0, lost: tuple[int, ...] = ()) -> StoreStatus:
    members = [MemberStatus(f"m{i}", True, 1, 1) for i in range(reachable)]
    members += [MemberStatus(f"x{i}", False, 1, 1, error="silent") for i in range(away)]
    return StoreStatus(tuple(members), lost=lost)


def admit(of: StoreStatus, members_max: int = 0, *, protected: bool = True) -> int:
    record = ExecutionRecord("j", 1, JobStatus.RUNNING, members_max=members_max)
    return check_admission("j", of, record, split_brain_protection=protected)


@pytest.mark.parametrize(
    ("members", "needed"),
    [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (8, 5), (9, 5)],
)
def test_the_table_of_the_design(members: int, needed: int) -> None:
    assert quorum(members) == needed
    assert admit(status(needed, members - needed)) == members
    with pytest.raises(StoreUnavailableError, match=f"the job needs {needed}"):
        admit(status(needed - 1, members - needed + 1))


def test_five_split_into_three_and_two() -> None:
    assert admit(status(3, 2), members_max=5) == 5
    with pytest.raises(StoreUnavailableError, match=r"2 members are reachable.*x0: silent") as told:
        admit(status(2, 3), members_max=5)
    assert told.value.reaction is Reaction.RESTART, "splits heal"


def test_four_split_into_two_and_two() -> None:
    with pytest.raises(StoreUnavailableError, match="split-brain protection"):
        admit(status(2, 2), members_max=4)


def test_it_only_ratchets_up() -> None:
    """Taking the others out of the store on one side of a split does not help."""
    assert admit(status(5), members_max=3) == 5
    with pytest.raises(StoreUnavailableError, match="majority of the 5"):
        admit(status(2), members_max=5)
    assert admit(status(3), members_max=5) == 5


def test_growing_both_halves_defeats_it() -> None:
    """Documented: two sides that each take in as many new members as they miss both pass."""
    assert admit(status(3), members_max=5) == 5
    assert admit(status(3), members_max=5) == 5


def test_without_protection_only_what_is_lost_counts() -> None:
    assert admit(status(1, 4), members_max=5, protected=False) == 5
    with pytest.raises(StoreUnavailableError, match=r"partitions \[3, 7\].*x0: silent"):
        admit(status(3, 2, lost=(3, 7)), protected=False)


def test_a_new_job_has_seen_what_there_is() -> None:
    assert check_admission("j", status(3, 1), None, split_brain_protection=True) == 4
