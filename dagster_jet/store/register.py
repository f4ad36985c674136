"""The quorum register: one linearizable value on all members, with an owner. Pure.

No I/O, no clock, no randomness: requests go out, replies come in. ``quorum.py`` carries them to
real members, ``tests/unit/store/test_register.py`` to simulated ones that lose and repeat them.

It is single-decree Paxos (Lamport, *Paxos Made Simple*, 2001) with two changes: the owner of a
ballot may replace the value again and again, counting ``sequence``, as a Multi-Paxos leader fills
slots of which only the last matters; and readers finish what they find, as in the ABD register
(Attiya, Bar-Noy, Dolev 1995).

What makes it safe, with M = any majority of the members:

1. A ballot number belongs to at most one owner. A member promises a number to the first that asks;
   owning it takes M; two M's share a member. So accepts of one number come from one owner.
2. One *attempt* of an owner uses a ballot once. An owner that died and came back under the same
   name claims with a higher ``attempt``; otherwise it would number its writes from a value it has
   not seen and two values could share (ballot, sequence).
3. A value on M under one (ballot, sequence) is *settled*: any later owner's promises include one
   of those members, so it adopts that value or a newer one before it writes anything else.
4. A reader returns only settled values. What it finds on fewer members it first writes back,
   **under the ballot it was written with**, as if the owner's delayed message arrived: a member
   that has promised a higher ballot refuses. Then the value may or may not be adopted by the claim
   under way, so the reader must not return it: it reads again or reports that it cannot know.

With one member all of this shrinks to a compare-and-set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from dagster_jet.errors import StoreMismatchError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """Who may write: a number (the execution id), its owner, and the owner's attempt.

    The order is meaningful between ballots of different numbers or of one owner; there are no
    others among accepted values (rule 1).
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


NO_BALLOT = Ballot(0, "")
"""Below every ballot; what a member that never heard of the register has promised."""

_Place: TypeAlias = tuple[Ballot, int]


@dataclass(frozen=True, slots=True)
class AcceptorState:
    """What one member keeps for one register.

    Attributes:
        promised: no ballot that does not supersede this one is accepted any more.
        accepted_ballot: the ballot under which ``value`` was written, None without a value.
        sequence: the value's number, counted over all ballots; 0 without a value.
        value: the value, None while there is none.
    """

    promised: Ballot = NO_BALLOT
    accepted_ballot: Ballot | None = None
    sequence: int = 0
    value: bytes | None = None

    @property
    def place(self) -> _Place:
        """Where the value stands in the order of all values: (ballot, sequence)."""
        return (self.accepted_ballot or NO_BALLOT, self.sequence)

    def to_bytes(self) -> bytes:
        """Return the state as bytes: one line of JSON, then the value as it is."""
        accepted = self.accepted_ballot
        head = {
            "format": FORMAT_VERSION,
            "promised": _ballot_to_json(self.promised),
            "accepted": None if accepted is None else _ballot_to_json(accepted),
            "sequence": self.sequence,
            "has_value": self.value is not None,
        }
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + (self.value or b"")

    @staticmethod
    def from_bytes(stored: bytes) -> AcceptorState:
        """Read what ``to_bytes`` wrote.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        line, _, value = stored.partition(b"\n")
        head = json.loads(line)
        if head["format"] > FORMAT_VERSION:
            raise StoreMismatchError(
                f"a register has format {head['format']}, this library reads up to "
                f"{FORMAT_VERSION}.",
                cure="Upgrade dagster-jet to the version that wrote the store.",
            )
        accepted = head["accepted"]
        return AcceptorState(
            promised=Ballot(*head["promised"]),
            accepted_ballot=None if accepted is None else Ballot(*accepted),
            sequence=head["sequence"],
            value=value if head["has_value"] else None,
        )


def _ballot_to_json(ballot: Ballot) -> list[int | str]:
    return [ballot.number, ballot.owner, ballot.attempt, ballot.nonce]


# --- messages -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Promise:
    """Ask a member to promise a ballot and to tell what it holds."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Accept:
    """Ask a member to take a value written under a ballot."""

    ballot: Ballot
    sequence: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Ask a member what it holds."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A member's answer.

    Attributes:
        request: the request that is answered; late and repeated answers are known by it.
        granted: promised, accepted (now or earlier), or read.
        state: the member's state after the request.
    """

    request: Request
    granted: bool
    state: AcceptorState


Request: TypeAlias = Promise | Accept | Read


def acceptor_step(state: AcceptorState, request: Request) -> tuple[AcceptorState, Reply]:
    """Apply one request to a member's state; repeating a request changes nothing more.

    The new state must be durable before the reply leaves the member. A refusal leaves the state
    as it was.
    """
    if isinstance(request, Read):
        return state, Reply(request, True, state)
    if not request.ballot.supersedes(state.promised):
        return state, Reply(request, False, state)
    if isinstance(request, Promise):
        promised = replace(state, promised=request.ballot)
        return promised, Reply(request, True, promised)
    offered = (request.ballot, request.sequence)
    if offered < state.place:
        # A delayed accept of the same owner, overtaken by its own next one.
        return state, Reply(request, False, state)
    accepted = AcceptorState(request.ballot, request.ballot, request.sequence, request.value)
    return accepted, Reply(request, True, accepted)


# --- proposers ------------------------------------------------------------------------------


class Outcome(Enum):
    """How an operation on the register ended."""

    SUCCEEDED = "succeeded"
    """A majority confirmed."""
    FENCED = "fenced"
    """A newer ballot was met (``fenced_by``). What was being written may still be adopted by it."""
    UNKNOWN = "unknown"
    """No majority confirmed, yet something may have been written and become the value."""
    UNAVAILABLE = "unavailable"
    """No majority answered, and no value was written anywhere."""


class Round:
    """One request to all members, until enough have answered to decide.

    Args:
        members: all members of the register, also those known to be down.
        request: what each is asked.
    """

    def __init__(self, members: Iterable[str], request: Request) -> None:
        self.members = tuple(members)
        self.request = request
        self.granted: dict[str, AcceptorState] = {}
        self.refused: dict[str, AcceptorState] = {}
        self.silent: dict[str, bool] = {}
        """Members that did not answer; True: they may have carried the request out."""

    @property
    def majority(self) -> int:
        """How many members are more than half."""
        return len(self.members) // 2 + 1

    @property
    def waiting(self) -> tuple[str, ...]:
        """The members that have neither answered nor been given up."""
        heard = self.granted.keys() | self.refused.keys() | self.silent.keys()
        return tuple(member for member in self.members if member not in heard)

    @property
    def has_majority(self) -> bool:
        """Whether a majority granted the request."""
        return len(self.granted) >= self.majority

    @property
    def may_have_written(self) -> bool:
        """Whether any member carried the request out, or may have."""
        return bool(self.granted) or any(self.silent.values())

    def receive(self, member: str, reply: Reply) -> None:
        """Take a reply. One to another request, or one that comes twice, is dropped."""
        if reply.request != self.request or member not in self.members:
            return
        if member in self.granted or member in self.refused:
            return
        self.silent.pop(member, None)  # given up too early; the answer counts after all
        (self.granted if reply.granted else self.refused)[member] = reply.state

    def no_answer(self, member: str, *, may_have_applied: bool) -> None:
        """Give up on a member."""
        if member in self.waiting:
            self.silent[member] = may_have_applied

    def fenced_by(self) -> Ballot | None:
        """Return the highest ballot for which a member refused, None if none did."""
        return max((state.promised for state in self.refused.values()), default=None)


class Operation:
    """What ``Claim``, ``Write`` and ``ReadLatest`` share: rounds, one after the other.

    The driver sends ``current.request`` to every member in ``current.waiting``, hands answers to
    ``receive`` and silence to ``no_answer``, until ``outcome`` is set. It may go on handing in
    answers after that; they change nothing.

    Attributes:
        outcome: None while the operation runs.
        fenced_by: with FENCED, the ballot that was met.
        state: with SUCCEEDED, the value and its place.
    """

    def __init__(self, members: Iterable[str], request: Request) -> None:
        self.current = Round(members, request)
        self.outcome: Outcome | None = None
        self.fenced_by: Ballot | None = None
        self.state = AcceptorState()

    def receive(self, member: str, reply: Reply) -> None:
        """Take a member's reply."""
        if self.outcome is None:
            self.current.receive(member, reply)
            self._decide()

    def no_answer(self, member: str, *, may_have_applied: bool) -> None:
        """Give up on a member; ``may_have_applied``: the request may have arrived."""
        if self.outcome is None:
            self.current.no_answer(member, may_have_applied=may_have_applied)
            self._decide()

    def _decide(self) -> None:
        raise NotImplementedError

    def _next(self, request: Request) -> None:
        self.current = Round(self.current.members, request)

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if outcome is Outcome.FENCED:
            self.fenced_by = self.current.fenced_by()

    def _end_without_majority(self, *, wrote: bool) -> None:
        if self.current.refused:
            self._end(Outcome.FENCED)
        elif wrote:
            self._end(Outcome.UNKNOWN)
        else:
            self._end(Outcome.UNAVAILABLE)


class Claim(Operation):
    """Win a ballot: promises from a majority, then the newest value found, written back.

    After SUCCEEDED ``state`` is the adopted value under the new ballot (without a value: a register
    that was never written), and nobody with a lower ballot can write any more. A claim that ends
    otherwise may have fenced the former owner, and may have settled a value of theirs that was
    pending; it has written nothing of its own.
    """

    def __init__(self, members: Iterable[str], ballot: Ballot) -> None:
        super().__init__(members, Promise(ballot))
        self.ballot = ballot

    def _decide(self) -> None:
        if isinstance(self.current.request, Promise):
            if self.current.has_majority:
                newest = max(self.current.granted.values(), key=lambda state: state.place)
                if newest.value is None:
                    self.state = AcceptorState(promised=self.ballot)
                    self._end(Outcome.SUCCEEDED)
                else:
                    self.state = AcceptorState(
                        self.ballot, self.ballot, newest.sequence, newest.value
                    )
                    self._next(Accept(self.ballot, newest.sequence, newest.value))
            elif self.current.refused:
                # One refusal is enough: going on could only split the votes with the other claim.
                self._end(Outcome.FENCED)
            elif not self.current.waiting:
                self._end_without_majority(wrote=False)
        elif self.current.has_majority:
            self._end(Outcome.SUCCEEDED)
        elif not self.current.waiting:
            self._end_without_majority(wrote=self.current.may_have_written)


class Write(Operation):
    """Write the next value under a ballot that was won.

    Goes on after a majority has confirmed only as far as the driver likes: SUCCEEDED stands. FENCED
    does not mean "not written": the newer owner may have adopted the value.
    """

    def __init__(self, members: Iterable[str], owned: AcceptorState, value: bytes) -> None:
        ballot = owned.promised
        sequence = owned.sequence + 1
        super().__init__(members, Accept(ballot, sequence, value))
        self.state = AcceptorState(ballot, ballot, sequence, value)

    def _decide(self) -> None:
        if self.current.has_majority:
            # Also when others refused: a claim under way will find this value on its majority.
            self._end(Outcome.SUCCEEDED)
        elif not self.current.waiting:
            self._end_without_majority(wrote=self.current.may_have_written)


class ReadLatest(Operation):
    """Return the newest value of a majority, settled.

    FENCED: a claim under way refuses the write-back; whether it adopts the value found is open, so
    there is no answer yet: read again. UNKNOWN and UNAVAILABLE both mean that a majority could not
    be reached; a reader writes nothing of its own.
    """

    def __init__(self, members: Iterable[str]) -> None:
        super().__init__(members, Read())

    def _decide(self) -> None:
        if isinstance(self.current.request, Read):
            # All who can be reached are waited for: then most reads need no write-back, and the
            # write-back is sent to those who lack the value.
            if self.current.waiting:
                return
            if not self.current.has_majority:
                self._end_without_majority(wrote=False)
                return
            found = self.current.granted
            self.state = max(found.values(), key=lambda state: state.place)
            holders = [m for m, state in found.items() if state.place == self.state.place]
            ballot, value = self.state.accepted_ballot, self.state.value
            if ballot is None or value is None or len(holders) >= self.current.majority:
                self._end(Outcome.SUCCEEDED)
            else:
                self._write_back(ballot, value, holders)
        elif self.current.has_majority:
            self._end(Outcome.SUCCEEDED)
        elif not self.current.waiting:
            self._end_without_majority(wrote=self.current.may_have_written)

    def _write_back(self, ballot: Ballot, value: bytes, holders: Iterable[str]) -> None:
        known = self.current.granted
        self._next(Accept(ballot, self.state.sequence, value))
        for member in holders:
            self.current.granted[member] = known[member]
        self._decide()
