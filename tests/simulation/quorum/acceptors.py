"""A member of the simulation: what it keeps, and how a request reaches it in steps.

As on a real member (``store/quorum/acceptor_on_member.py``) a request that begins a register is
not one step: its name is listed, the floor is read, and only then the state is exchanged, if
nobody was faster. Whoever lists the registers may come in between any two of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dagster_jet.store.register import AcceptorState, Choose, Operation, Read, Reply, Request, Seal

from .mutants import Cast


@dataclass
class Call:
    """A request on its way to a member, at it, or on the way back.

    Attributes:
        wait: how many steps the member has done for it.
        seen: the state at its first step.
    """

    operation: Operation
    member: str
    request: Request
    reply: Reply | None = None
    wait: int = 0
    seen: AcceptorState | None = None
    floor: int = 0


@dataclass
class Acceptor:
    """One member. ``known_from``: the configuration it was known in first with this disk."""

    state: AcceptorState = field(default_factory=AcceptorState)
    floor: int = 0
    listed: bool = False
    is_up: bool = True
    known_from: int = 0
    older_in: int = -1
    """The newest configuration in which it came back older."""
    past: list[tuple[AcceptorState, int, bool]] = field(default_factory=list)

    def come_back_older(self, at: int, configuration: int) -> None:
        """Be as at an earlier moment, under the same identity."""
        self.state, self.floor, self.listed = self.past[at]
        self.past = self.past[: at + 1]
        self.older_in = configuration

    def wipe(self, newest: int) -> None:
        """Lose everything; whoever knew it before takes it for dead (``identity.py``)."""
        self.state, self.floor, self.listed = AcceptorState(), 0, False
        self.past = []
        self.known_from = newest + 1

    def step(self, call: Call, cast: Cast) -> Reply | None:
        """Do the next step of a call; return the reply after the last one."""
        if call.seen is None:
            call.seen = self.state
            begins = self.state.configuration < call.request.configuration
            if not begins or isinstance(call.request, Seal | Choose):
                return self._finish(call, cast)
            if not isinstance(call.request, Read):
                self.listed = True
            return None
        if call.wait == 0:
            call.floor, call.wait = self.floor, 1
            return None
        return self._finish(call, cast)

    def _finish(self, call: Call, cast: Cast) -> Reply | None:
        assert call.seen is not None
        new, reply = cast.step(call.seen, call.request, call.floor, call.member)
        if new != call.seen:
            if self.state != call.seen:
                call.seen, call.wait = None, 0  # somebody was faster: begin again
                return None
            self.past.append((self.state, self.floor, self.listed))
            self.state, self.listed = new, True
        return reply
