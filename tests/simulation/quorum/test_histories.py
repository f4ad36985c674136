"""A thousand and more histories per run; each must be linearizable.

JET_SIMULATION_HISTORIES=100000 pytest tests/simulation/quorum    # a soak
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

import pytest

from dagster_jet.store.register import Ballot

from .history import Recorded, is_linearizable
from .world import play

HISTORIES = int(os.environ.get("JET_SIMULATION_HISTORIES", "1000"))
BLOCKS = 10

MUST_HAVE_HAPPENED = (
    *(f"ClaimBallot: {o}" for o in ("succeeded", "fenced", "stale", "uninstalled", "unknown")),
    *(f"Write: {o}" for o in ("succeeded", "fenced", "stale", "unknown", "unavailable")),
    *(f"ReadLatest: {o}" for o in ("succeeded", "fenced", "stale", "uninstalled", "unavailable")),
    *(f"Move: {o}" for o in ("succeeded", "fenced", "stale", "unavailable")),
    *(f"members: {kind}" for kind in ("join", "leave", "replace", "any")),
    "a change was finished",
    "there was nothing to move",
    "a member's disk was lost",
    "a member came back older",
    *(f"{kind}: doubted" for kind in ("ClaimBallot", "ReadLatest")),
)


# --- the judge ---------------------------------------------------------------------------------


def write(value: bytes, begin: int, end: int | None = None, ballot: int = 1) -> Recorded:
    return Recorded("write", value, begin, end, Ballot(ballot, "a"))


def claim(value: bytes | None, begin: int, end: int, ballot: int) -> Recorded:
    return Recorded("claim", value, begin, end, Ballot(ballot, "a"))


def read(value: bytes | None, begin: int, end: int) -> Recorded:
    return Recorded("read", value, begin, end)


def test_a_value_that_goes_back_is_seen() -> None:
    history = [write(b"1", 0, 1), write(b"2", 2, 9), read(b"2", 3, 4)]
    assert is_linearizable(history)
    assert not is_linearizable([*history, read(b"1", 5, 6)])


def test_a_write_without_an_end_may_come_late_or_never() -> None:
    history = [write(b"1", 0, 1), write(b"2", 2), read(b"1", 5, 6)]
    assert is_linearizable(history)
    assert is_linearizable([*history, read(b"2", 7, 8)])
    assert not is_linearizable([*history, read(b"2", 7, 8), read(b"1", 9, 10)])


def test_no_write_of_a_lower_ballot_follows_a_claim() -> None:
    history = [write(b"1", 0, 1), write(b"2", 2), claim(b"1", 3, 6, ballot=2)]
    assert is_linearizable([*history, read(b"1", 7, 8)])
    assert not is_linearizable([*history, read(b"2", 7, 8)])
    assert is_linearizable([*history[:2], claim(b"2", 3, 6, ballot=2), read(b"2", 7, 8)])
    assert not is_linearizable([*history, write(b"3", 7, 8)])
    assert is_linearizable([*history, write(b"3", 7, 8, ballot=2)])


def test_what_was_never_written_must_not_be_read() -> None:
    assert not is_linearizable([write(b"1", 0, 1), read(b"2", 2, 3)])


def test_reads_at_one_moment_may_differ_while_a_write_is_under_way() -> None:
    assert is_linearizable([write(b"1", 0, 9), read(None, 1, 8), read(b"1", 2, 3)])
    assert not is_linearizable([write(b"1", 0, 9), read(b"1", 1, 3), read(None, 4, 8)])


# --- the register ------------------------------------------------------------------------------


@cache
def histories(block: int) -> Counter[str]:
    """Play one block of seeds; return what happened in all of them together."""
    seen: Counter[str] = Counter()
    for seed in range(block, HISTORIES, BLOCKS):
        try:
            seen.update(play(seed).seen)
        except AssertionError as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
    return seen


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_history_is_linearizable(block: int) -> None:
    assert histories(block)


def test_everything_that_can_happen_has_happened() -> None:
    seen = sum((histories(block) for block in range(BLOCKS)), Counter[str]())
    never = [what for what in MUST_HAVE_HAPPENED if not seen[what]]
    assert not never, f"in {HISTORIES} histories never: {never}"
