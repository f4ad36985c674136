"""State and answers of one member for one register. Pure.

An acceptor lives in one configuration at a time and only moves up:

    never ──Install (or the first request of a stable configuration)──▶ installed in k
    installed in k ──Seal──▶ sealed: answers movers only ──Install──▶ installed in k+1

*Never* is the state of a member without data: in a new store, or just joined. It counts in a quorum
of a stable configuration, like a member that has missed all writes so far. While a change is under
way it does not count: the majority with the value may still be in the previous configuration.

A member may come back *older*: restored from a copy, or replaced by a replica. So it counts its
``changes`` of the register. Every process that hears of a count passes it on with its next request,
and members keep the counts they receive (``known_changes``). A member that hears of a higher count
than its own has forgotten something, and says so instead of answering
(``ReplyStatus.FORGETFUL``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from dagster_jet.core.stored_format import check_format
from dagster_jet.store.register.ballot import NO_BALLOT, Ballot

FORMAT_VERSION = 1

NEVER_INSTALLED = -1

ChangeCounts: TypeAlias = tuple[tuple[str, int], ...]
"""(member, number of changes of a register it has reported), sorted; for one configuration.

The count is the member's own, over all configurations, since it got its identity. It is passed on
within one configuration only: in the next one the same name may stand for another member."""

_Place: TypeAlias = tuple[Ballot, int]


@dataclass(frozen=True, slots=True)
class AcceptorState:
    """State of one member for one register.

    Attributes:
        promised: only ballots that supersede this one are accepted.
        accepted_ballot: the ballot under which ``value`` was written; None: no claim got so far.
        sequence: the value's number, counted over all ballots; 0 without a value.
        value: the value; None if there is none.
        configuration: the configuration of this state.
        sealed_by: the newest mover to which this member has promised to leave
            ``configuration``; None while it serves.
        chosen_by: the mover that wrote this state as the last one of ``configuration``.
        changes: number of changes of this member's state for the register.
        known_changes: the ``changes`` of all members in ``configuration`` that it has heard of.
    """

    promised: Ballot = NO_BALLOT
    accepted_ballot: Ballot | None = None
    sequence: int = 0
    value: bytes | None = None
    configuration: int = NEVER_INSTALLED
    sealed_by: Ballot | None = None
    chosen_by: Ballot | None = None
    changes: int = 0
    known_changes: ChangeCounts = ()

    @property
    def place(self) -> _Place:
        """Position of the value in the order of all values: (ballot, sequence)."""
        return (self.accepted_ballot or NO_BALLOT, self.sequence)

    def serves(self, configuration: int) -> bool:
        """Whether this is a state of that configuration, open to owners and readers."""
        return self.configuration == configuration and self.sealed_by is None

    def installed_in(self, configuration: int) -> AcceptorState:
        """Return this state as the first one of a configuration."""
        return replace(
            self, configuration=configuration, sealed_by=None, chosen_by=None, known_changes=()
        )

    def to_bytes(self) -> bytes:
        """Return the state as one line of JSON, followed by the raw value."""
        head = {
            "format": FORMAT_VERSION,
            "promised": self.promised.to_json(),
            "accepted": _to_json(self.accepted_ballot),
            "sequence": self.sequence,
            "has_value": self.value is not None,
            "configuration": self.configuration,
            "sealed_by": _to_json(self.sealed_by),
            "settled_by": _to_json(self.chosen_by),
            "changes": self.changes,
            "known_changes": self.known_changes,
        }
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + (self.value or b"")

    @staticmethod
    def from_bytes(stored: bytes) -> AcceptorState:
        """Parse the bytes of ``to_bytes``.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        line, _, value = stored.partition(b"\n")
        head = json.loads(line)
        check_format("a register", head["format"], FORMAT_VERSION)
        return AcceptorState(
            promised=Ballot(*head["promised"]),
            accepted_ballot=_from_json(head["accepted"]),
            sequence=head["sequence"],
            value=value if head["has_value"] else None,
            configuration=head["configuration"],
            sealed_by=_from_json(head["sealed_by"]),
            chosen_by=_from_json(head["settled_by"]),
            changes=head["changes"],
            known_changes=tuple((member, count) for member, count in head["known_changes"]),
        )


def merged(*counts: Iterable[tuple[str, int]]) -> ChangeCounts:
    """Return the highest count of each member; zeros are left out."""
    highest: dict[str, int] = {}
    for member, count in (one for some in counts for one in some):
        if count > highest.get(member, 0):
            highest[member] = count
    return tuple(sorted(highest.items()))


def _to_json(ballot: Ballot | None) -> list[int | str] | None:
    return None if ballot is None else ballot.to_json()


def _from_json(read: list[int | str] | None) -> Ballot | None:
    return None if read is None else Ballot(*read)  # type: ignore[arg-type]


# --- requests -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfConfiguration:
    """Fields of every request.

    Attributes:
        configuration: number of the request's configuration.
        stable: the sender knows that this configuration is stable.
        known_changes: change counts of members that the sender has heard of.
    """

    configuration: int = 0
    stable: bool = True
    known_changes: ChangeCounts = ()


@dataclass(frozen=True, slots=True)
class Promise(_OfConfiguration):
    """Ask a member to promise a ballot and to return its state."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Accept(_OfConfiguration):
    """Ask a member to accept a value under a ballot; None: the register stays empty."""

    ballot: Ballot
    sequence: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Read(_OfConfiguration):
    """Ask a member for its state."""


@dataclass(frozen=True, slots=True)
class Seal(_OfConfiguration):
    """Ask a member to leave ``configuration`` on behalf of a mover, and to return its state.

    Movers compete like owners, with ballots of their own.
    """

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Choose(_OfConfiguration):
    """Ask a member to store a state as the last one of ``configuration``."""

    ballot: Ballot
    state: AcceptorState


@dataclass(frozen=True, slots=True)
class Install(_OfConfiguration):
    """Ask a member to begin ``configuration`` with a state."""

    state: AcceptorState


Request: TypeAlias = Promise | Accept | Read | Seal | Choose | Install


class ReplyStatus(Enum):
    """The kind of a member's answer."""

    GRANTED = "granted"
    """Done, now or earlier."""
    FENCED = "fenced"
    """Refused because of a newer ballot or a newer value."""
    STALE = "stale"
    """The member has left the request's configuration."""
    UNINSTALLED = "uninstalled"
    """The member has not been installed in the request's configuration yet."""
    FORGETFUL = "forgetful"
    """The member has forgotten changes: it came back older. Nothing was done."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A member's answer.

    Attributes:
        request: the answered request; identifies late and repeated answers.
        status: the kind of the answer.
        state: the member's state after the request.
    """

    request: Request
    status: ReplyStatus
    state: AcceptorState


# --- the step -------------------------------------------------------------------------------


def acceptor_step(
    state: AcceptorState, request: Request, floor: int = 0, member: str = ""
) -> tuple[AcceptorState, Reply]:
    """Apply one request to a member's state; repeating a request has no further effect.

    The new state must be durable before the reply leaves the member. Refusals and reads do not
    change the state.

    Args:
        state: the member's state for the register.
        request: the request.
        floor: the lowest configuration in which the member still begins a register. Must be read
            *after* the state and, if the request may write, after the register's name can be
            listed on the member. Used only if the state is of an older configuration.
        member: the member's name in the configuration.
    """
    if request.known_changes and state.changes < dict(request.known_changes).get(member, 0):
        return state, Reply(request, ReplyStatus.FORGETFUL, state)
    new, reply = _step(state, request, floor)
    if new == state:
        return state, reply
    known = state.known_changes if state.configuration == new.configuration else ()
    new = replace(
        new, changes=state.changes + 1, known_changes=merged(known, request.known_changes)
    )
    return new, replace(reply, state=new)


def _step(state: AcceptorState, request: Request, floor: int) -> tuple[AcceptorState, Reply]:
    if isinstance(request, Seal | Choose):
        return _moved_out(state, request)
    here = request.configuration
    if state.configuration > here or (state.configuration == here and state.sealed_by is not None):
        return state, Reply(request, ReplyStatus.STALE, state)
    before = state
    if state.configuration < here:
        if floor > here:
            # The registers of this configuration have been listed without this one. If it were
            # begun now, no change of the members would move it any more.
            return state, Reply(request, ReplyStatus.STALE, state)
        if isinstance(request, Install):
            installed = replace(request.state.installed_in(here), changes=state.changes)
            return installed, Reply(request, ReplyStatus.GRANTED, installed)
        if not request.stable:
            return state, Reply(request, ReplyStatus.UNINSTALLED, state)
        state = _begun(state, here)
    if isinstance(request, Install):
        # Installed already, perhaps with later changes: any earlier install is equally valid.
        return before, Reply(request, ReplyStatus.GRANTED, state)
    if isinstance(request, Read):
        return before, Reply(request, ReplyStatus.GRANTED, state)
    if not request.ballot.supersedes(state.promised):
        return before, Reply(request, ReplyStatus.FENCED, state)
    if isinstance(request, Promise):
        promised = replace(state, promised=request.ballot)
        return promised, Reply(request, ReplyStatus.GRANTED, promised)
    if (request.ballot, request.sequence) < state.place:
        # A delayed accept, overtaken by a later one of the same owner.
        return before, Reply(request, ReplyStatus.FENCED, state)
    accepted = replace(
        state,
        promised=request.ballot,
        accepted_ballot=request.ballot,
        sequence=request.sequence,
        value=request.value,
    )
    return accepted, Reply(request, ReplyStatus.GRANTED, accepted)


def _moved_out(state: AcceptorState, request: Seal | Choose) -> tuple[AcceptorState, Reply]:
    here = request.configuration
    if state.configuration > here:
        return state, Reply(request, ReplyStatus.STALE, state)
    if state.configuration < here:
        # A configuration with a successor was stable: this member has only missed its writes.
        state, before = _begun(state, here), state
    else:
        before = state
    if state.sealed_by is not None and not request.ballot.supersedes(state.sealed_by):
        return before, Reply(request, ReplyStatus.FENCED, state)
    if isinstance(request, Seal):
        sealed = replace(state, sealed_by=request.ballot)
    else:
        sealed = replace(
            request.state,
            configuration=here,
            sealed_by=request.ballot,
            chosen_by=request.ballot,
            changes=state.changes,
            known_changes=state.known_changes,
        )
    return sealed, Reply(request, ReplyStatus.GRANTED, sealed)


def _begun(state: AcceptorState, configuration: int) -> AcceptorState:
    """Return the state of a member that has missed all writes of a configuration so far."""
    return AcceptorState(configuration=configuration, changes=state.changes)
