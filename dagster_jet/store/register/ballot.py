"""Who may write: ballots and their order. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """Who may write: a number (the execution id), its owner, and the owner's attempt.

    The order is meaningful between ballots of different numbers or of one owner; there are no
    others among accepted values (``register/__init__.py``, rule 1).
    """

    number: int
    owner: str
    attempt: int = 0
    nonce: str = ""

    def supersedes(self, other: Ballot) -> bool:
        """Whether a member that promised ``other`` may promise or accept this one instead."""
        if self.number != other.number:
            return self.number > other.number
        return self.owner == other.owner and self >= other

    def to_json(self) -> list[int | str]:
        """Return the arguments this ballot is made from."""
        return [self.number, self.owner, self.attempt, self.nonce]


NO_BALLOT = Ballot(0, "")
"""Below every ballot; what a member that never heard of the register has promised."""
