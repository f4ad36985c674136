"""The scopes that are explored: who does what, on which members, from where."""

from __future__ import annotations

from dataclasses import replace

from dagster_jet.store.register import AcceptorState, Ballot, Configuration

from .mutants import Cast
from .scope import Scope, Step

ONE, TWO, THREE = Ballot(1, "a"), Ballot(2, "b"), Ballot(3, "c")
OLD: Configuration[None] = Configuration(0, dict.fromkeys((0, 1, 2)))
NEW: Configuration[None] = Configuration(1, dict.fromkeys((1, 2, 3)), OLD)
CLAIMED = AcceptorState(ONE, ONE, 0, None, configuration=0)
"""State of every member after the claim of ballot 1."""


def owners(late_max: int | None, *, reads: int, cast: Cast | None = None) -> Scope:
    """Two proposers that claim and write once, and a reader, on three members."""
    scripts = [
        [Step("claim", OLD, ONE), Step("write", OLD, value=b"x")],
        [Step("claim", OLD, TWO), Step("write", OLD, value=b"y")],
    ]
    if reads:
        scripts.append([Step("read", OLD)] * reads)
    return Scope(range(3), scripts, cast, alike=[[0, 1, 2]], late_max=late_max)


def replacement(late_max: int | None, cast: Cast | None = None) -> Scope:
    """Member 0 is replaced by member 3: an owner writes, a mover moves, a new owner and a reader.

    The reader reads among the old members: it must not see the past.
    """
    scripts = [
        [Step("write", OLD, value=b"x", owned=CLAIMED)],
        [mover(1)],
        [Step("claim", NEW, TWO), Step("write", NEW, value=b"y")],
        [Step("read", OLD)],
    ]
    return _on_four(scripts, late_max, cast)


def two_movers(late_max: int | None, *, reads: int, cast: Cast | None = None) -> Scope:
    """An owner writes while two movers are at work; a reader reads among the new members."""
    scripts = [
        [Step("write", OLD, value=b"x", owned=CLAIMED)],
        [mover(1)],
        [mover(2)],
        [Step("read", NEW)] * reads,
    ]
    return _on_four(scripts, late_max, cast)


def two_movers_in_a_dispute(late_max: int | None, *, reads: int, cast: Cast | None = None) -> Scope:
    """As before, where a write has reached one member and the claim that passed it over another.

    Member 0 has the write of ballot 1. Ballot 2 has its promises from 1 and 2, did not see it, and
    has begun to write back that there is no value, on 2. What holds is open; it must be decided
    once.
    """
    scripts = [
        [Step("write", OLD, value=b"x", owned=CLAIMED)],
        [mover(1)],
        [mover(2)],
        [Step("read", NEW)] * reads,
    ]
    states = [
        replace(CLAIMED, sequence=1, value=b"x"),
        replace(CLAIMED, promised=TWO),
        replace(CLAIMED, promised=TWO, accepted_ballot=TWO),
        AcceptorState(),
    ]
    return Scope(range(4), scripts, cast, states, late_max=late_max, begun=[0])


def mover(number: int) -> Step:
    return Step("move", NEW, Ballot(number, f"mover {number}"), has_looked=True)


def _on_four(scripts: list[list[Step]], late_max: int | None, cast: Cast | None) -> Scope:
    states = [CLAIMED] * 3 + [AcceptorState()]
    return Scope(range(4), scripts, cast, states, alike=[[1, 2]], late_max=late_max)
