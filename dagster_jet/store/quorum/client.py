"""One register as owners and readers use it."""

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
    StaleConfigurationError,
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
    ClaimBallot,
    Configuration,
    Inquire,
    Operation,
    Outcome,
    ReadLatest,
    Witness,
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
    """The chosen value of a register: who wrote it, its number, and its bytes."""

    ballot: Ballot
    sequence: int
    value: bytes


class RegisterClient:
    """One register on all members of a configuration; any process may read it or claim it.

    While a change of the members is under way, the first to use a register in the new
    configuration moves it there.

    Args:
        configuration: the store's members, also those that are down. Processes that name another
            configuration are told apart by its number; under one number all must name one set.
        name: the register's name, unique in the store.
    """

    def __init__(self, configuration: Configuration[Member], name: str) -> None:
        self.name = name
        self.configuration = configuration
        self._heard: dict[int, Witness] = {}
        """What this object has heard of the members' changes: none may be forgotten."""

    def read(self) -> RegisterValue | None:
        """Return the newest value, None if the register was never written.

        Linearizable, also across changes of the members: what one reader has seen no later reader
        misses. Writes nothing of its own, but may finish a write or a move that was under way.

        Raises:
            StaleConfigurationError: the register has moved to other members.
            StoreUnavailableError: no majority answers, or a claim under way keeps the newest
                value undecided for longer than a read waits.
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
            f"the register {self.name!r} is being claimed ({_named(operation.fenced_by)}) and its "
            "newest value is undecided.",
            cure="Read again; if the claimant died, the next claim decides it.",
        )

    def highest_ballot(self) -> Ballot | None:
        """Return the highest ballot a majority has heard of, None if there was none.

        The number to claim with is one more. A ballot here may be one that was never won.

        Raises:
            StaleConfigurationError: the register has moved to other members.
            StoreUnavailableError: no majority answers.
        """
        highest = _highest(self._inquire())
        return None if highest == NO_BALLOT else highest

    def claim(self, number: int, owner: str) -> OwnedRegister:
        """Become the register's owner: from now on every lower ballot's write fails.

        Args:
            number: strictly larger than any ballot so far (an execution id). The same owner may
                claim its own number again, for instance after a failed claim; that fences
                whatever it did under the earlier one.
            owner: a name no other process uses at the same time.

        Returns:
            The owned register, holding the newest value there is, chosen under this ballot.

        Raises:
            FencedError: a ballot of this number or a higher one exists.
            StaleConfigurationError: the register has moved to other members.
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

        A write that another ballot has overtaken may have been adopted by it or not: the next claim
        finds out. After a crash inside, the value is the old one or the new one.

        Args:
            change: returns the new value; None to leave the register alone; the value that it was
                given if nothing is to be written. Called again where another process was faster.
            ours: the values that earlier calls for the same change have tried to write. The call
                adds its own.

        Returns:
            The value that the register has now, or None where `change` has returned None.

        Raises:
            StaleConfigurationError: the register has moved to other members, and the value may
                have moved with it or not.
            StoreUnavailableError: no majority answers, or others wrote all the time.
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
                # Another process decides at this moment: let it, then look again.
                give_way(attempt)
                continue
            assert owned.value is not None
            return RegisterValue(owned.ballot, owned.sequence, owned.value)
        raise StoreUnavailableError(
            f"the register {self.name!r} could not be claimed: {_CLAIMS_MAX} times another process "
            "was faster.",
            cure="Try again.",
        )

    def _claim(self, number: int, owner: str) -> ClaimBallot:
        """Return a claim with a ballot of this number that this owner has not used yet."""
        found = self._inquire()
        highest = _highest(found)
        attempt = 0
        if (highest.number, highest.owner) == (number, owner):
            attempt = highest.attempt + 1
        # The nonce keeps two processes apart that claim under one name at one moment.
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
        """Run an operation, again when its register had to be moved first, or who came back older
        had to be told apart from who was ahead of the others."""
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
                # Members that were away when the register was moved: they are needed now.
                move_register(self.configuration, self.name)
            except StoreUnavailableError:
                break
        if not wrote:
            raise unavailable(self.name, operation, failures)
        round_ = operation.current
        raise WriteOutcomeUnknownError(
            f"write {operation.state.sequence} of the register {self.name!r} was confirmed by "
            f"fewer than {round_.majority} of {len(round_.members)} members: {listed(failures)}",
            cure="Neither commit nor clean up; restart, the register says what holds.",
        )

    def _fenced(self, ballot: Ballot, by: Ballot | None) -> FencedError:
        return FencedError(
            f"the register {self.name!r} is held by {_named(by)}; {_named(ballot)} may not write.",
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

        After a crash inside, the value is the old one or this one; the next claim decides which,
        once and for all.

        Raises:
            FencedError: a newer owner exists. The value may have been adopted by it or not.
            StaleConfigurationError: the register has moved to other members, and the value may
                have moved with it or not. Later writes of this object raise it too.
            WriteOutcomeUnknownError: too few members confirmed. Later writes of this object
                raise it too: a second value under the same number would break the register.
            StoreUnavailableError: no member has taken the value; writing again is allowed.
        """
        with self._lock:
            if self._ended is not None:
                raise self._ended()
            try:
                self._state = self._client._write(self._state, value)
            except (FencedError, StaleConfigurationError, WriteOutcomeUnknownError) as error:
                kind, message = type(error), str(error)
                self._ended = lambda: kind(message)
                raise


def _highest(states: Iterable[AcceptorState]) -> Ballot:
    return max(state.promised for state in states)


def _named(ballot: Ballot | None) -> str:
    return "another ballot" if ballot is None else f"ballot {ballot.number} of {ballot.owner!r}"
