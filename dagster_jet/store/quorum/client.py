"""Interface of one register for owners and readers."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    MembersChangedError,
    StoreError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.store.members.member import Member
from dagster_jet.store.quorum.movement import move_register
from dagster_jet.store.quorum.rounds import Failures, drive, listed, stale, unavailable
from dagster_jet.store.register import (
    NO_BALLOT,
    AcceptorState,
    Ballot,
    ChangeCounts,
    ClaimBallot,
    Configuration,
    Inquire,
    Operation,
    Outcome,
    ReadLatest,
    Write,
    merged,
)
from dagster_jet.system.backoff import give_way

Op = TypeVar("Op", bound=Operation)

_ATTEMPTS_MAX = 12
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.25
_CLAIMS_MAX = 100


@dataclass(frozen=True, slots=True)
class RegisterValue:
    """The chosen value of a register: its ballot, its number and its bytes."""

    ballot: Ballot
    sequence: int
    value: bytes


class RegisterClient:
    """One register on all members of a configuration; any process may read it or claim it.

    While a change of the members is under way, the first use of a register in the new
    configuration moves it there.

    Args:
        configuration: the store's members, including those that are down. Its number
            distinguishes it from other configurations; all processes must use the same members
            under one number.
        name: the register's name, unique in the store.
    """

    def __init__(self, configuration: Configuration[Member], name: str) -> None:
        self.name = name
        self.configuration = configuration
        self._heard: dict[int, ChangeCounts] = {}
        """Change counts of members that this object has heard of; none may be forgotten."""

    def read(self) -> RegisterValue | None:
        """Return the newest value, None if the register was never written.

        Linearizable, also across changes of the members: a value that one reader has seen is not
        missed by a later reader. It writes no new value, but may complete a write or a move.

        Raises:
            MembersChangedError: the register has moved to other members.
            StoreUnavailableError: no majority answers, or a concurrent claim keeps the newest value
                undecided for longer than a read waits.
        """
        pause = _FIRST_PAUSE_SECONDS
        for _ in range(_ATTEMPTS_MAX):
            operation, failures = self._run(lambda: ReadLatest(self.configuration, self._heard))
            if operation.outcome is Outcome.SUCCEEDED:
                state = operation.state
                if state.value is None or state.accepted_ballot is None:
                    return None
                return RegisterValue(state.accepted_ballot, state.sequence, state.value)
            if operation.outcome is not Outcome.FENCED:
                raise unavailable(self.name, operation, failures)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        raise StoreUnavailableError(
            f"another process is claiming the register {self.name!r} "
            f"({_named(operation.fenced_by)}), and its newest value is not decided yet.",
            cure="Read again. If the claiming process died, the next claim decides the value.",
        )

    def highest_ballot(self) -> Ballot | None:
        """Return the highest ballot that a majority has heard of; None if there was none.

        The next claim uses a number one higher. The ballot may be one that was never won.

        Raises:
            MembersChangedError: the register has moved to other members.
            StoreUnavailableError: no majority answers.
        """
        highest = _highest(self._inquire())
        return None if highest == NO_BALLOT else highest

    def claim(self, number: int, owner: str) -> OwnedRegister:
        """Become the register's owner: from then on writes under lower ballots fail.

        Args:
            number: strictly higher than any ballot so far (an execution id). The same owner may
                claim its own number again, for instance after a failed claim; that fences its
                earlier writes.
            owner: a name that no other process uses at the same time.

        Returns:
            The owned register with the newest value, chosen under this ballot.

        Raises:
            FencedError: a ballot of this number or a higher one exists.
            MembersChangedError: the register has moved to other members.
            StoreUnavailableError: no majority answers; a former owner may have been fenced.
        """
        if number < 1:
            raise ConfigurationError(f"a ballot's number begins with 1, not {number}.")
        operation, failures = self._run(lambda: self._claim(number, owner))
        if operation.outcome is Outcome.FENCED:
            raise self._fenced(operation.ballot, operation.fenced_by)
        if operation.outcome is not Outcome.SUCCEEDED:
            raise unavailable(self.name, operation, failures)
        return OwnedRegister(self, operation.state)

    def update(
        self, change: Callable[[bytes | None], bytes | None], *, ours: set[bytes] | None = None
    ) -> RegisterValue | None:
        """Read, change and write the value under a ballot of its own.

        A later ballot may or may not adopt a write that it has overtaken: the next claim finds out.
        After a crash inside, the value is the old or the new one.

        Args:
            change: returns the new value, None to leave the register unchanged, or its argument to
                write nothing. Called again after a lost race.
            ours: values that earlier calls for the same change have tried to write. The call adds
                its own.

        Returns:
            The current value of the register, or None if `change` has returned None.

        Raises:
            MembersChangedError: the register has moved, with or without the value.
            StoreUnavailableError: no majority answers, or every attempt lost a race.
            WriteOutcomeUnknownError: too few members confirmed the write.
        """
        ours = set() if ours is None else ours
        owner = secrets.token_hex(16)
        for attempt in range(_CLAIMS_MAX):
            try:
                highest = self.highest_ballot()
                owned = self.claim(highest.number + 1 if highest else 1, owner)
                if owned.value not in ours:
                    changed = change(owned.value)
                    if changed is None:
                        return None
                    if changed != owned.value:
                        ours.add(changed)
                        owned.write(changed)
            except FencedError:
                # Another process decides now: wait, then read again.
                give_way(attempt)
                continue
            assert owned.value is not None
            return RegisterValue(owned.ballot, owned.sequence, owned.value)
        raise StoreUnavailableError(
            f"the register {self.name!r} could not be claimed: another process was faster "
            f"{_CLAIMS_MAX} times.",
            cure="Try again.",
        )

    def _claim(self, number: int, owner: str) -> ClaimBallot:
        """Return a claim with a ballot of this number that this owner has not used yet."""
        found = self._inquire()
        highest = _highest(found)
        attempt = 0
        if (highest.number, highest.owner) == (number, owner):
            attempt = highest.attempt + 1
        # The nonce distinguishes two processes that claim concurrently under one name.
        ballot = Ballot(number, owner, attempt, secrets.token_hex(8))
        if not ballot.supersedes(highest):
            raise self._fenced(ballot, highest)
        return ClaimBallot(self.configuration, ballot, self._heard, found)

    def _inquire(self) -> Collection[AcceptorState]:
        operation, failures = self._run(lambda: Inquire(self.configuration, self._heard))
        if operation.outcome is not Outcome.SUCCEEDED:
            raise unavailable(self.name, operation, failures)
        return operation.states.values()

    def _driven(self, operation: Operation) -> Failures:
        failures = drive(operation, self.name)
        here = self.configuration.number
        heard = operation.heard.get(here, ())
        self._heard = {here: merged(self._heard.get(here, ()), heard)}  # threads share this object
        return failures

    def _run(self, operation_of: Callable[[], Op]) -> tuple[Op, Failures]:
        """Run an operation. It runs again after the register was moved, or after an inquiry about
        members that may have come back older."""
        for _ in range(_ATTEMPTS_MAX):
            operation = operation_of()
            failures = self._driven(operation)
            if operation.outcome is Outcome.STALE:
                raise stale(self.name, self.configuration.number)
            if operation.outcome is Outcome.DOUBTED:
                continue
            if operation.outcome is not Outcome.UNINSTALLED:
                return operation, failures
            move_register(self.configuration, self.name)
        raise unavailable(self.name, operation, failures)

    def _write(self, owned: AcceptorState, value: bytes) -> AcceptorState:
        wrote = False
        for _ in range(_ATTEMPTS_MAX):
            operation = Write(self.configuration, owned, value, self._heard)
            failures = self._driven(operation)
            wrote = wrote or operation.current.may_have_written
            if operation.outcome is Outcome.SUCCEEDED:
                return operation.state
            if operation.outcome is Outcome.FENCED:
                raise self._fenced(owned.promised, operation.fenced_by)
            if operation.outcome is Outcome.STALE:
                raise stale(self.name, self.configuration.number)
            if operation.outcome is Outcome.DOUBTED:
                continue
            if operation.outcome is not Outcome.UNINSTALLED:
                break
            try:
                # Members that were unavailable when the register was moved are needed now.
                move_register(self.configuration, self.name)
            except StoreUnavailableError:
                break
        if not wrote:
            raise unavailable(self.name, operation, failures)
        round_ = operation.current
        raise WriteOutcomeUnknownError(
            f"write {operation.state.sequence} of the register {self.name!r} was confirmed by "
            f"fewer than {round_.majority} of {len(round_.members)} members: {listed(failures)}",
            cure="Do not commit and do not clean up. Restart: the start reads from the register "
            "whether the write counts.",
        )

    def _fenced(self, ballot: Ballot, by: Ballot | None) -> FencedError:
        return FencedError(
            f"the register {self.name!r} is held by {_named(by)}; {_named(ballot)} may not write.",
        )


class OwnedRegister:
    """A register under a ballot that was won. Concurrent writes are serialised."""

    def __init__(self, client: RegisterClient, state: AcceptorState) -> None:
        self._client = client
        self._state = state
        self._lock = threading.Lock()
        self._ended: Callable[[], StoreError] | None = None

    @property
    def ballot(self) -> Ballot:
        """The ballot that this owner won."""
        return self._state.promised

    @property
    def sequence(self) -> int:
        """The number of the newest value; 0 before the first."""
        return self._state.sequence

    @property
    def value(self) -> bytes | None:
        """The newest value: adopted at the claim, later written by this owner."""
        return self._state.value

    def write(self, value: bytes) -> None:
        """Replace the value; on return it is on a majority and any later owner will find it.

        After a crash inside, the value is the old or the new one; the next claim decides it.

        Raises:
            FencedError: a newer owner exists, which may or may not have adopted the value.
            MembersChangedError: the register has moved to other members, with or without the
                value. Later writes of this object raise it, too.
            WriteOutcomeUnknownError: too few members confirmed. Later writes of this object
                raise it, too: a second value under the same number would break the register.
            StoreUnavailableError: no member has written the value; the write may be repeated.
            Exception: any other error of a member. Later writes of this object raise
                `WriteOutcomeUnknownError`.
        """
        with self._lock:
            if self._ended is not None:
                raise self._ended()
            try:
                self._state = self._client._write(self._state, value)
            except StoreUnavailableError:
                raise
            except (FencedError, MembersChangedError, WriteOutcomeUnknownError) as error:
                kind, message = type(error), str(error)
                self._ended = lambda: kind(message)
                raise
            except BaseException as error:
                # Members may have the value: its number must not be used for another one.
                what = f"an earlier write of the register {self._client.name!r} raised {error!r}."
                self._ended = lambda: WriteOutcomeUnknownError(what)
                raise


def _highest(states: Iterable[AcceptorState]) -> Ballot:
    return max(state.promised for state in states)


def _named(ballot: Ballot | None) -> str:
    return "another ballot" if ballot is None else f"ballot {ballot.number} of {ballot.owner!r}"
