"""The quorum register over real members: the rim around ``register.py`` that does the I/O.

A member's acceptor is one versioned value: read it, apply the pure step, compare-and-set it, and
begin again when another process was faster.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    StoreError,
    StoreUnavailableError,
    StoreUnwritableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.store.envelope import BadCopyError, seal, unseal
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import Member, Versioned
from dagster_jet.store.register import (
    NO_BALLOT,
    AcceptorState,
    Ballot,
    Claim,
    Operation,
    Outcome,
    Promise,
    Read,
    ReadLatest,
    Reply,
    Request,
    Round,
    Write,
    acceptor_step,
)

_RACES_MAX = 1_000
_READ_ATTEMPTS_MAX = 12
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class RegisterValue:
    """A settled value of a register: who wrote it, its number, and its bytes."""

    ballot: Ballot
    sequence: int
    value: bytes


@dataclass(frozen=True, slots=True)
class _Silence:
    """A member that gave no answer."""

    error: StoreError
    may_have_applied: bool


class RegisterClient:
    """One register on all members; any process may read it or claim it.

    Args:
        members: all members of the store, also those that are down: the majority is counted
            among all of them. Every process must name the same set.
        name: the register's name, unique in the store.
    """

    def __init__(self, members: Sequence[Member], name: str) -> None:
        self.name = name
        self._members = {member.member_id: member for member in members}
        self._key = b"register/" + name.encode()

    def read(self) -> RegisterValue | None:
        """Return the newest value, None if the register was never written.

        Linearizable: what one reader has seen no later reader misses. Writes nothing of its own,
        but may finish a write that was under way.

        Raises:
            StoreUnavailableError: no majority answers, or a claim under way keeps the newest
                value undecided for longer than a read waits.
        """
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_READ_ATTEMPTS_MAX):
            operation = ReadLatest(self._members)
            failures = self._run(operation)
            if operation.outcome is Outcome.SUCCEEDED:
                state = operation.state
                if state.value is None or state.accepted_ballot is None:
                    return None
                return RegisterValue(state.accepted_ballot, state.sequence, state.value)
            if operation.outcome is not Outcome.FENCED:
                raise self._unavailable(failures)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        raise StoreUnavailableError(
            f"the register {self.name!r} is being claimed ({_named(operation.fenced_by)}) and its "
            "newest value is undecided.",
            cure="Read again; if the claimant died, the next claim decides it.",
        )

    def highest_ballot(self) -> Ballot | None:
        """Return the highest ballot a majority has heard of, None if there was none.

        The number to claim with is one more. A ballot here may be one that was never won.

        Raises:
            StoreUnavailableError: no majority answers.
        """
        highest = max(state.promised for state in self._states().values())
        return None if highest == NO_BALLOT else highest

    def claim(self, number: int, owner: str) -> OwnedRegister:
        """Become the register's owner: from now on every lower ballot's write fails.

        Args:
            number: strictly larger than any ballot so far (an execution id). The same owner may
                claim its own number again, for instance after a failed claim; that fences
                whatever it did under the earlier one.
            owner: a name no other process uses at the same time.

        Returns:
            The owned register, holding the newest value there is, settled under this ballot.

        Raises:
            FencedError: a ballot of this number or a higher one exists.
            StoreUnavailableError: no majority answers; a former owner may have been fenced.
        """
        if number < 1:
            raise ConfigurationError(f"a ballot's number begins with 1, not {number}.")
        highest = max(state.promised for state in self._states().values())
        attempt = 0
        if (highest.number, highest.owner) == (number, owner):
            attempt = highest.attempt + 1
        # The nonce keeps two processes apart that claim under one name at one moment.
        ballot = Ballot(number, owner, attempt, secrets.token_hex(8))
        if not ballot.supersedes(highest):
            raise self._fenced(ballot, highest)
        operation = Claim(self._members, ballot)
        failures = self._run(operation)
        if operation.outcome is Outcome.FENCED:
            raise self._fenced(ballot, operation.fenced_by)
        if operation.outcome is not Outcome.SUCCEEDED:
            raise self._unavailable(failures)
        return OwnedRegister(self, operation.state)

    def _write(self, owned: AcceptorState, value: bytes) -> AcceptorState:
        operation = Write(self._members, owned, value)
        failures = self._run(operation)
        if operation.outcome is Outcome.SUCCEEDED:
            return operation.state
        if operation.outcome is Outcome.FENCED:
            raise self._fenced(owned.promised, operation.fenced_by)
        if operation.outcome is Outcome.UNAVAILABLE:
            raise self._unavailable(failures)
        raise WriteOutcomeUnknownError(
            f"write {operation.state.sequence} of the register {self.name!r} was confirmed by "
            f"fewer than {operation.current.majority} of {len(self._members)} members: "
            f"{_listed(failures)}",
            cure="Neither commit nor clean up; restart, the register says what holds.",
        )

    def _states(self) -> dict[str, AcceptorState]:
        """Ask all members what they hold; at least a majority has answered."""
        round_ = Round(self._members, Read())
        failures: dict[str, StoreError] = {}
        for member_id, answer in self._ask(round_.waiting, round_.request).items():
            if isinstance(answer, Reply):
                round_.receive(member_id, answer)
            else:
                failures[member_id] = answer.error
        if not round_.has_majority:
            raise self._unavailable(failures)
        return round_.granted

    def _run(self, operation: Operation) -> dict[str, StoreError]:
        """Carry an operation's requests to the members until it ends; return who was silent."""
        failures: dict[str, StoreError] = {}
        while operation.outcome is None:
            request, waiting = operation.current.request, operation.current.waiting
            if isinstance(request, Promise):
                # One member after the other, always in one order: of two claims at one moment the
                # first member then picks one, where asking at once could split the votes.
                waiting = waiting[:1]
            for member_id, answer in self._ask(waiting, request).items():
                if isinstance(answer, Reply):
                    operation.receive(member_id, answer)
                else:
                    failures[member_id] = answer.error
                    operation.no_answer(member_id, may_have_applied=answer.may_have_applied)
        return failures

    def _ask(self, member_ids: Sequence[str], request: Request) -> dict[str, Reply | _Silence]:
        calls = {member_id: self._step_on(member_id, request) for member_id in member_ids}
        answers, _ = fan_out(calls)
        return answers

    def _step_on(self, member_id: str, request: Request) -> Callable[[], Reply | _Silence]:
        return lambda: self._step(self._members[member_id], request)

    def _step(self, member: Member, request: Request) -> Reply | _Silence:
        for _ in range(_RACES_MAX):
            try:
                stored = member.get_versioned(self._key)
                state = self._state_in(member, stored)
            except (StoreUnavailableError, StoreUnwritableError) as error:
                return _Silence(error, may_have_applied=False)
            new, reply = acceptor_step(state, request)
            if new == state:
                return reply
            version = stored.version if stored else 0
            try:
                if member.compare_and_set(self._key, version, seal(new.to_bytes())):
                    return reply
            except (StoreUnavailableError, StoreUnwritableError) as error:
                # Crash window: the member may have done it before it, or the way back, broke.
                return _Silence(error, may_have_applied=True)
        lost = StoreUnavailableError(
            f"{member.member_id} lost {_RACES_MAX} races for the register {self.name!r}."
        )
        return _Silence(lost, may_have_applied=False)

    def _state_in(self, member: Member, stored: Versioned | None) -> AcceptorState:
        if stored is None:
            return AcceptorState()
        try:
            return AcceptorState.from_bytes(unseal(stored.value))
        except BadCopyError as error:
            # Not an empty state: a member that forgets its promises breaks the quorum.
            raise StoreUnavailableError(
                f"{member.member_id} holds a damaged copy of the register {self.name!r}: {error}."
            ) from error

    def _fenced(self, ballot: Ballot, by: Ballot | None) -> FencedError:
        return FencedError(
            f"the register {self.name!r} is held by {_named(by)}; {_named(ballot)} may not write.",
        )

    def _unavailable(self, failures: dict[str, StoreError]) -> StoreUnavailableError:
        majority = len(self._members) // 2 + 1
        return StoreUnavailableError(
            f"the register {self.name!r} needs {majority} of {len(self._members)} members: "
            f"{_listed(failures)}",
            cure="Bring the members back; nothing was lost by waiting.",
        )


class OwnedRegister:
    """A register under a ballot that was won. Writes from several threads happen one by one."""

    def __init__(self, client: RegisterClient, state: AcceptorState) -> None:
        self._client = client
        self._state = state
        self._lock = threading.Lock()
        self._ended: Callable[[], StoreError] | None = None

    @property
    def ballot(self) -> Ballot:
        """The ballot this owner won."""
        return self._state.promised

    @property
    def sequence(self) -> int:
        """The number of the newest value; 0 before the first."""
        return self._state.sequence

    @property
    def value(self) -> bytes | None:
        """The newest value: adopted at the claim, then what this owner wrote."""
        return self._state.value

    def write(self, value: bytes) -> None:
        """Replace the value; on return it is on a majority and any later owner will find it.

        After a crash inside, the value is the old one or this one; the next read or claim decides
        which, once and for all.

        Raises:
            FencedError: a newer owner exists. The value may have been adopted by it or not.
            WriteOutcomeUnknownError: too few members confirmed. Later writes of this object
                raise it too: a second value under the same number would break the register.
            StoreUnavailableError: no member has taken the value; writing again is allowed.
        """
        with self._lock:
            if self._ended is not None:
                raise self._ended()
            try:
                self._state = self._client._write(self._state, value)
            except FencedError as error:
                message = str(error)
                self._ended = lambda: FencedError(message)
                raise
            except WriteOutcomeUnknownError as error:
                message = str(error)
                self._ended = lambda: WriteOutcomeUnknownError(message)
                raise


def _named(ballot: Ballot | None) -> str:
    return "another ballot" if ballot is None else f"ballot {ballot.number} of {ballot.owner!r}"


def _listed(failures: dict[str, StoreError]) -> str:
    return "; ".join(f"{member_id}: {error}" for member_id, error in sorted(failures.items()))
