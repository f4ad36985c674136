"""Ballots: the right to write a register, and their order. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """The right to write: a number (the execution id), its owner, and the owner's attempt.

    The order is meaningful between ballots of different numbers or of one owner; accepted values
    have no others (``register/__init__.py``, rule 1).
    """

    number: int
    owner: str
    attempt: int = 0
    nonce: str = ""

    def supersedes(self, other: Ballot) -> bool:
        """Whether a member that promised ``other`` may promise or accept this ballot instead."""
        if self.number != other.number:
            return self.number > other.number
        return self.owner == other.owner and self >= other

    def to_json(self) -> list[int | str]:
        """Return the constructor arguments of this ballot."""
        return [self.number, self.owner, self.attempt, self.nonce]


NO_BALLOT = Ballot(0, "")
"""Lower than every ballot; the promise of a member without data for the register."""
