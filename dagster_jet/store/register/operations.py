"""Operations of owners and readers: rounds of requests to one configuration's members. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from dagster_jet.store.register.acceptor import (
    Accept,
    AcceptorState,
    ChangeCounts,
    Choose,
    Promise,
    Read,
    Reply,
    ReplyStatus,
    Request,
    Seal,
    merged,
)
from dagster_jet.store.register.ballot import Ballot
from dagster_jet.store.register.configuration import Configuration


class Outcome(Enum):
    """Result of an operation on the register."""

    SUCCEEDED = "succeeded"
    """A majority confirmed."""
    FENCED = "fenced"
    """Overtaken by a newer ballot (``fenced_by``), which may still adopt the value."""
    STALE = "stale"
    """The register has moved to a newer configuration, or is about to. The value being written may
    have moved with it."""
    UNINSTALLED = "uninstalled"
    """Members of a new configuration lack the register's state: move it (``Move``), then repeat."""
    DOUBTED = "doubted"
    """Members have reported more changes to others than to us: they made them since, or forgot
    them. Repeat the operation with ``heard``; the members' answers then show which."""
    UNKNOWN = "unknown"
    """No majority confirmed, but the value may have been written and may be chosen."""
    UNAVAILABLE = "unavailable"
    """No majority answered, and no value was written anywhere."""


class Round:
    """One request to all members, until enough have answered for a decision.

    Args:
        configuration: its members are asked, including those known to be down. A name may stand
            for different members in two configurations: a member that lost its data came back.
        request: the request to each member.
    """

    def __init__(self, configuration: Configuration[Any], request: Request) -> None:
        self.configuration = configuration
        self.members = tuple(configuration.members)
        self.request = request
        self.answers: dict[str, ReplyStatus] = {}
        self.states: dict[str, AcceptorState] = {}
        self.silent: dict[str, bool] = {}
        """Members that did not answer; True: they may have carried the request out."""
        self.heard: ChangeCounts = request.known_changes
        """Known change counts of the members: from the request, the members and others."""

    @property
    def majority(self) -> int:
        """Number of members that form a majority."""
        return len(self.members) // 2 + 1

    @property
    def waiting(self) -> tuple[str, ...]:
        """The members that have neither answered nor been given up."""
        return tuple(m for m in self.members if m not in self.answers and m not in self.silent)

    @property
    def doubted(self) -> dict[str, AcceptorState]:
        """The states of members that have reported more changes than they remember here."""
        heard = dict(self.heard)
        return {m: s for m, s in self.states.items() if s.changes < heard.get(m, 0)}

    @property
    def granted(self) -> dict[str, AcceptorState]:
        """The states of members that granted the request and are not doubted."""
        said = self.said(ReplyStatus.GRANTED)
        if not self.heard:
            return said
        doubted = self.doubted
        return {member: state for member, state in said.items() if member not in doubted}

    @property
    def has_majority(self) -> bool:
        """Whether a majority granted the request."""
        return len(self.granted) >= self.majority

    @property
    def may_have_written(self) -> bool:
        """Whether any member carried the request out, or may have."""
        return bool(self.said(ReplyStatus.GRANTED)) or any(self.silent.values())

    def said(self, status: ReplyStatus) -> dict[str, AcceptorState]:
        """Return the states of the members with this answer."""
        return {member: self.states[member] for member, v in self.answers.items() if v is status}

    def receive(self, member: str, reply: Reply) -> None:
        """Take a reply; drops replies to other requests and repeated ones."""
        if reply.request != self.request or member not in self.members or member in self.answers:
            return
        self.silent.pop(member, None)  # given up too early; the answer counts
        self.answers[member] = reply.status
        self.states[member] = state = reply.state
        if state.changes or state.known_changes:
            is_here = state.configuration == self.configuration.number
            known_changes = state.known_changes if is_here else ()
            self.heard = merged(self.heard, known_changes, ((member, state.changes),))

    def no_answer(self, member: str, *, may_have_applied: bool) -> None:
        """Give up on a member."""
        if member in self.waiting:
            self.silent[member] = may_have_applied

    def fenced_by(self) -> Ballot | None:
        """Return the highest ballot for which a member refused; None if none did."""
        refused = self.said(ReplyStatus.FENCED).values()
        if isinstance(self.request, Seal | Choose):
            return max((s.sealed_by for s in refused if s.sealed_by is not None), default=None)
        return max((state.promised for state in refused), default=None)


class Operation:
    """Base class of operations: a sequence of rounds.

    The driver sends ``current.request`` to every member in ``current.waiting``, passes answers to
    ``receive`` and silence to ``no_answer``, until ``outcome`` is set. Later answers have no
    effect.

    Attributes:
        configuration: its members are asked.
        outcome: None while the operation runs.
        fenced_by: with FENCED, the ballot that has overtaken it.
        state: with SUCCEEDED, the value and its place.
        heard: known change counts of the members, by the number of their configuration; to be
            passed to the next operation on the same register.
    """

    def __init__(
        self,
        configuration: Configuration[Any],
        request: Request,
        heard: Mapping[int, ChangeCounts] | None = None,
    ) -> None:
        self.configuration = configuration
        self.heard = dict(heard or {})
        self._ask(configuration, request)
        self.outcome: Outcome | None = None
        self.fenced_by: Ballot | None = None
        self.state = AcceptorState()

    def receive(self, member: str, reply: Reply) -> None:
        """Take a member's reply."""
        if self.outcome is None:
            self.current.receive(member, reply)
            if self.current.heard:
                self.heard[self.current.configuration.number] = self.current.heard
            self._decide()

    def no_answer(self, member: str, *, may_have_applied: bool) -> None:
        """Give up on a member; ``may_have_applied``: the request may have arrived."""
        if self.outcome is None:
            self.current.no_answer(member, may_have_applied=may_have_applied)
            self._decide()

    def _decide(self) -> None:
        raise NotImplementedError

    def _next(self, request: Request) -> None:
        self._ask(self.current.configuration, request)

    def _ask(self, configuration: Configuration[Any], request: Request) -> None:
        known_changes = self.heard.get(configuration.number, ())
        self.current = Round(configuration, replace(request, known_changes=known_changes))

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if outcome is Outcome.FENCED:
            self.fenced_by = self.current.fenced_by()

    def _end_without_majority(self, *, wrote: bool) -> None:
        if self.current.said(ReplyStatus.FENCED):
            self._end(Outcome.FENCED)
        elif self.current.said(ReplyStatus.STALE):
            self._end(Outcome.STALE)
        elif self.current.said(ReplyStatus.UNINSTALLED):
            self._end(Outcome.UNINSTALLED)
        elif self.current.doubted:
            self._end(Outcome.DOUBTED)
        elif wrote:
            self._end(Outcome.UNKNOWN)
        else:
            self._end(Outcome.UNAVAILABLE)


class Inquire(Operation):
    """Ask all reachable members for their states; SUCCEEDED: a majority answered (``states``)."""

    def __init__(
        self, configuration: Configuration[Any], heard: Mapping[int, ChangeCounts] | None = None
    ) -> None:
        super().__init__(configuration, read_of(configuration), heard)

    @property
    def states(self) -> dict[str, AcceptorState]:
        """The members' states."""
        return self.current.granted

    def _decide(self) -> None:
        if self.current.waiting:
            return
        if self.current.has_majority:
            self._end(Outcome.SUCCEEDED)
        else:
            self._end_without_majority(wrote=False)


class ClaimBallot(Operation):
    """Win a ballot: promises from a majority, then the newest value found is written back.

    After SUCCEEDED ``state`` is the adopted value under the new ballot, and no value of a lower
    ballot can be written or reappear any more. For the same reason an empty register is written
    back like a value. A claim that ends otherwise may have fenced the former owner, and may have
    chosen a pending value of that owner; it has written no value of its own.

    Args:
        configuration: its members are asked.
        ballot: must not have been used before.
        heard: see ``Operation``.
        found: states read just before (``Inquire``). A newer value among them is adopted, too:
            a promising majority may consist of a member that missed it and one that forgot it.
    """

    def __init__(
        self,
        configuration: Configuration[Any],
        ballot: Ballot,
        heard: Mapping[int, ChangeCounts] | None = None,
        found: Iterable[AcceptorState] = (),
    ) -> None:
        super().__init__(
            configuration,
            Promise(ballot, configuration=configuration.number, stable=configuration.is_stable),
            heard,
        )
        self.ballot = ballot
        self._found = tuple(found)

    def _decide(self) -> None:
        if isinstance(self.current.request, Promise):
            if self.current.has_majority:
                answered = (*self.current.granted.values(), *self._found)
                newest = max(answered, key=lambda state: state.place)
                self.state = AcceptorState(
                    self.ballot,
                    self.ballot,
                    newest.sequence,
                    newest.value,
                    configuration=self.configuration.number,
                )
                self._next(accept_of(self.configuration, self.state))
            elif self.current.said(ReplyStatus.STALE) or self.current.said(ReplyStatus.FENCED):
                # One refusal is enough: continuing could only split the votes with the other claim.
                self._end_without_majority(wrote=False)
            elif not self.current.waiting:
                self._end_without_majority(wrote=False)
        elif self.current.has_majority:
            self._end(Outcome.SUCCEEDED)
        elif not self.current.waiting:
            self._end_without_majority(wrote=self.current.may_have_written)


class Write(Operation):
    """Write the next value under a ballot that was won in the same configuration.

    SUCCEEDED is final, although the driver may pass in more answers. FENCED and STALE do not mean
    "not written": the newer owner may have adopted the value. After UNINSTALLED and DOUBTED the
    same value may be written again, but no other.
    """

    def __init__(
        self,
        configuration: Configuration[Any],
        owned: AcceptorState,
        value: bytes,
        heard: Mapping[int, ChangeCounts] | None = None,
    ) -> None:
        state = AcceptorState(
            owned.promised,
            owned.promised,
            owned.sequence + 1,
            value,
            configuration=configuration.number,
        )
        super().__init__(configuration, accept_of(configuration, state), heard)
        self.state = state

    def _decide(self) -> None:
        if self.current.has_majority:
            # Also if others refused: a concurrent claim will find this value on its majority.
            self._end(Outcome.SUCCEEDED)
        elif not self.current.waiting:
            self._end_without_majority(wrote=self.current.may_have_written)


class ReadLatest(Operation):
    """Read the newest value of a majority; only a chosen value is returned.

    FENCED: a concurrent claim refuses the write-back and may or may not adopt the value found, so
    there is no result yet: read again. UNKNOWN and UNAVAILABLE both mean that a majority could not
    be reached; a reader writes no value of its own.
    """

    def __init__(
        self, configuration: Configuration[Any], heard: Mapping[int, ChangeCounts] | None = None
    ) -> None:
        super().__init__(configuration, read_of(configuration), heard)

    def _decide(self) -> None:
        if isinstance(self.current.request, Read):
            # Wait for all reachable members: most reads then need no write-back, and a write-back
            # goes to the members that lack the value.
            if self.current.waiting:
                return
            if not self.current.has_majority:
                self._end_without_majority(wrote=False)
                return
            found = self.current.granted
            self.state = max(found.values(), key=lambda state: state.place)
            holders = [m for m, state in found.items() if state.place == self.state.place]
            if self.state.accepted_ballot is None or len(holders) >= self.current.majority:
                self._end(Outcome.SUCCEEDED)
            else:
                self._write_back(holders)
        elif self.current.has_majority:
            self._end(Outcome.SUCCEEDED)
        elif not self.current.waiting:
            self._end_without_majority(wrote=self.current.may_have_written)

    def _write_back(self, holders: Iterable[str]) -> None:
        known = self.current.states
        self._next(accept_of(self.configuration, self.state))
        for member in holders:
            self.current.answers[member] = ReplyStatus.GRANTED
            self.current.states[member] = known[member]
        self._decide()


def read_of(configuration: Configuration[Any]) -> Read:
    """Return the request for a member's state in a configuration."""
    return Read(configuration=configuration.number, stable=configuration.is_stable)


def accept_of(configuration: Configuration[Any], state: AcceptorState) -> Accept:
    """Return the request to accept the value of ``state`` at its own place."""
    if state.accepted_ballot is None:
        raise ValueError("a value without a ballot cannot be written")
    return Accept(
        state.accepted_ballot,
        state.sequence,
        state.value,
        configuration=configuration.number,
        stable=configuration.is_stable,
    )
