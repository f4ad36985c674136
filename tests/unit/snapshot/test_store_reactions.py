"""The table of what a job does when members of its store fail it, and the page that prints it.

That jobs do so: tests/integration/test_store_calls.py."""

from pathlib import Path

import pytest

from dagster_jet.errors import (
    FencedError,
    JetError,
    MembersChangedError,
    StoreCorruptedError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreUnwritableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.snapshot.store_reactions import (
    REACTIONS,
    Condition,
    StoreCall,
    StoreReaction,
    condition_of,
    reaction_of,
)
from dagster_jet.store.members.member import DamagedMemberError

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"


def test_the_page_prints_the_table() -> None:
    rows = [("what is asked", *(c.value for c in Condition)), ("---",) * (1 + len(Condition))]
    rows += [(call.value, *(REACTIONS[call][c].value for c in Condition)) for call in StoreCall]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    assert f"\n{table}\n" in PAGE.read_text("utf-8")


def test_it_is_whole() -> None:
    assert set(REACTIONS) == set(StoreCall)
    assert all(set(row) == set(Condition) for row in REACTIONS.values())
    assert {reaction for row in REACTIONS.values() for reaction in row.values()} == set(
        StoreReaction
    )


@pytest.mark.parametrize("call", StoreCall)
def test_conditions_that_come_as_one_error_have_one_reaction(call: StoreCall) -> None:
    """An error that crosses from a task to the driver is its class and its text."""
    row = REACTIONS[call]
    assert row[Condition.FULL] is row[Condition.READ_ONLY]


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (StoreUnwritableError("full."), Condition.FULL),
        (StoreUnavailableError("away."), Condition.AWAY),
        (DamagedMemberError("its structure is damaged."), Condition.AWAY),
        (WriteOutcomeUnknownError("too few have confirmed."), Condition.AWAY),
        (MembersChangedError("the members have changed."), None),
        (StoreCorruptedError("no good copy is left."), None),
        (StoreMismatchError("of a newer version."), None),
        (FencedError("a newer execution."), None),
        (JetError("not the store's."), None),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_what_an_error_says_of_a_member(error: JetError, condition: Condition | None) -> None:
    assert condition_of(error) is condition
    for call in StoreCall:
        expected = None if condition is None else REACTIONS[call][condition]
        assert reaction_of(call, error) is expected
