"""The move of a register from one set of members to the next. Pure.

*Closing* a configuration is a separate consensus among its members about the state with which the
register leaves. Movers win it as owners win a register, with ballots that override every owner's:

1. **Seal**: a majority promises the mover to serve no owner and no reader any more, and returns its
   states. Every value confirmed in this configuration is among these answers.
2. **Choose**: the mover writes one state to a majority: the state that an earlier mover had chosen,
   else the newest value with the highest promise. From here on every mover finds this state: two
   movers never carry different states into the next configuration.
3. **Install**: the chosen state is sent to the new members. They install it once, replacing their
   former state, and serve the new configuration from then on.

The sealed states must not be installed directly: a value on a minority may or may not be among the
answers of a majority. Two movers could carry different states over, each to some of the members; a
value that a claim had already passed over would then be on a majority, and be taken for chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_jet.store.register.acceptor import (
    AcceptorState,
    ChangeCounts,
    Choose,
    Install,
    Read,
    ReplyStatus,
    Seal,
)
from dagster_jet.store.register.ballot import NO_BALLOT, Ballot
from dagster_jet.store.register.configuration import Configuration
from dagster_jet.store.register.operations import Operation, Outcome, read_of


class Close(Operation):
    """Choose the last state of a register in a configuration that has a successor.

    Begin it only after the successor has been decided: it ends the register's service in this
    configuration. After SUCCEEDED ``state`` is the initial state of the next configuration; if a
    member of the next configuration answered, it is that member's state. FENCED: another mover has
    the higher ballot; try again with one above ``fenced_by``. UNAVAILABLE and UNKNOWN: too few
    members answered; repeat it. STALE: the successor has been left as well.

    Sealing is a change itself, so a member that forgot only one change would look intact after it:
    ``heard`` should come from an ``Inquire`` of the same configuration.
    """

    def __init__(
        self,
        configuration: Configuration[Any],
        mover: Ballot,
        heard: Mapping[int, ChangeCounts] | None = None,
    ) -> None:
        super().__init__(configuration, _seal(configuration, mover), heard)
        self.mover = mover
        self._closing = configuration

    def _decide(self) -> None:
        if self._has_met_the_successor():
            return
        request = self.current.request
        if self.current.has_majority:
            if isinstance(request, Seal):
                self.state = self._last_state()
                self._next(Choose(self.mover, self.state, configuration=self._closing.number))
            else:
                self._closed()
        elif self.current.said(ReplyStatus.FENCED):
            self._end(Outcome.FENCED)
        elif not self.current.waiting:
            self._end_without_majority(wrote=False)

    def _has_met_the_successor(self) -> bool:
        for state in self.current.said(ReplyStatus.STALE).values():
            if state.serves(self._closing.number + 1):
                # Only chosen states are installed, so this one contains all that was confirmed
                # here. A member that installs it looks as if it had received the same requests.
                self.state = state
                self._closed()
            else:
                self._end(Outcome.STALE)
            return True
        return False

    def _last_state(self) -> AcceptorState:
        answered = self.current.granted.values()
        chosen = [state for state in answered if state.chosen_by is not None]
        if chosen:
            return max(chosen, key=lambda state: state.chosen_by or NO_BALLOT)
        newest = max(answered, key=lambda state: state.place)
        return AcceptorState(
            max(state.promised for state in answered),
            newest.accepted_ballot,
            newest.sequence,
            newest.value,
            configuration=self._closing.number,
        )

    def _closed(self) -> None:
        self._end(Outcome.SUCCEEDED)


class Move(Close):
    """Bring a register into a configuration whose change is under way.

    Any process may do it, at any time, concurrently, and again after a crash. After SUCCEEDED a
    majority of the new members serves the register, for good. If no majority of the new members
    answers, nothing is begun.
    """

    def __init__(
        self,
        configuration: Configuration[Any],
        mover: Ballot,
        heard: Mapping[int, ChangeCounts] | None = None,
    ) -> None:
        if configuration.previous is None:
            raise ValueError(f"{configuration!r} has no predecessor to move from")
        super().__init__(configuration.previous, mover, heard)
        self.configuration = configuration
        self._ask(configuration, read_of(configuration))

    def _decide(self) -> None:
        request = self.current.request
        if isinstance(request, Read):
            if not self.current.waiting:
                self._looked()
        elif isinstance(request, Install):
            if not self.current.waiting:  # all reachable members; the others follow later
                if self.current.has_majority:
                    self._end(Outcome.SUCCEEDED)
                else:
                    self._end_without_majority(wrote=False)
        else:
            super()._decide()

    def _looked(self) -> None:
        installed = self.current.granted
        if self.current.said(ReplyStatus.STALE):
            self._end(Outcome.STALE)
        elif len(self.current.answers) < self.current.majority:
            self._end(Outcome.UNAVAILABLE)
        elif installed:
            self.state = max(installed.values(), key=lambda state: state.place)
            self._closed()
        else:
            self._ask(self._closing, _seal(self._closing, self.mover))

    def _closed(self) -> None:
        self._ask(
            self.configuration,
            Install(self.state, configuration=self.configuration.number, stable=False),
        )


def _seal(configuration: Configuration[Any], mover: Ballot) -> Seal:
    return Seal(mover, configuration=configuration.number)
