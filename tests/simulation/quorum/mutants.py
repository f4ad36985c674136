"""Mistakes planted on purpose. The judges must see each, or they would not see ours either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dagster_jet.store import register as r
from dagster_jet.store.register import operations

Step = Callable[[r.AcceptorState, r.Request, int, str], tuple[r.AcceptorState, r.Reply]]
Call = Callable[[], None]


@dataclass(frozen=True)
class Cast:
    """Parts of the algorithm: the real ones, or a mutant in the place of one of them."""

    step: Step = r.acceptor_step
    claim: type[r.ClaimBallot] = r.ClaimBallot
    write: type[r.Write] = r.Write
    read: type[r.ReadLatest] = r.ReadLatest
    move: type[r.Move] = r.Move
    listing: Callable[[Call, Call], tuple[Call, Call]] = lambda raise_floor, list_: (
        raise_floor,
        list_,
    )


# --- members ----------------------------------------------------------------------------------


def ignores_the_ballot(state, request, floor, member):
    """A member accepts whatever comes last."""
    if isinstance(request, r.Accept) and state.serves(request.configuration):
        state = replace(state, promised=r.NO_BALLOT)
    return r.acceptor_step(state, request, floor, member)


def counts_an_uninstalled_member(state, request, floor, member):
    """A member without data speaks for the register while the register is still moving."""
    new, reply = r.acceptor_step(state, replace(request, stable=True), floor, member)
    return new, replace(reply, request=request)


def serves_although_sealed(state, request, floor, member):
    """A sealed member still tells readers what it holds."""
    new, reply = r.acceptor_step(state, request, floor, member)
    if isinstance(request, r.Read) and state.configuration == request.configuration:
        reply = replace(reply, status=r.ReplyStatus.GRANTED)
    return new, reply


def forgets_the_promise_at_install(state, request, floor, member):
    """A new member takes the value over, and not who may write."""
    new, reply = r.acceptor_step(state, request, floor, member)
    if isinstance(request, r.Install) and new != state:
        new = replace(new, promised=r.NO_BALLOT)
    return new, replace(reply, state=new)


def keeps_its_own_at_install(state, request, floor, member):
    """A member that stays keeps a value of its own that looks newer than the one decided."""
    if isinstance(request, r.Install) and state.configuration < request.configuration:
        new, reply = r.acceptor_step(state, request, floor, member)
        if new.configuration == request.configuration and state.place > new.place:
            new = replace(state.installed_in(request.configuration), promised=new.promised)
        return new, replace(reply, state=new)
    return r.acceptor_step(state, request, floor, member)


def installs_twice(state, request, floor, member):
    """A member that serves already takes a late state over once more."""
    if isinstance(request, r.Install) and state.serves(request.configuration):
        new = request.state.installed_in(request.configuration)
        new = replace(new, changes=state.changes + 1)
        return new, r.Reply(request, r.ReplyStatus.GRANTED, new)
    return r.acceptor_step(state, request, floor, member)


def begins_below_the_floor(state, request, floor, member):
    """A register is begun among the old members after the list was made."""
    return r.acceptor_step(state, request, 0, member)


# --- owners and readers -----------------------------------------------------------------------


class SkipsTheWriteBack(r.ReadLatest):
    """A reader returns what it finds on a few members."""

    def _write_back(self, holders):
        self._end(r.Outcome.SUCCEEDED)


class ReadsFromOne(r.ReadLatest):
    """A reader believes the first member that answers."""

    def _decide(self):
        for state in self.current.granted.values():
            self.state = state
            self._end(r.Outcome.SUCCEEDED)
            return
        super()._decide()


class BelievesAfterARefusal(r.ReadLatest):
    """A reader returns a value that a claim under way may drop."""

    def _end_without_majority(self, *, wrote):
        refused = self.current.said(r.ReplyStatus.FENCED)
        if refused and isinstance(self.current.request, r.Accept):
            self._end(r.Outcome.SUCCEEDED)
        else:
            super()._end_without_majority(wrote=wrote)


class _Minority(operations.Round):
    @property
    def majority(self):
        return max(1, len(self.members) // 2)


class AcceptsAMinority(r.Write):
    """Takes half of the members for enough for a write."""

    def _ask(self, configuration, request):
        super()._ask(configuration, request)
        self.current = _Minority(configuration, self.current.request)


class ClaimsWithAMinority(r.ClaimBallot):
    """Takes half of the members for enough for a promise."""

    def __init__(self, configuration, ballot, *heard):
        super().__init__(configuration, ballot, *heard)
        self.current = _Minority(configuration, self.current.request)


class ReusesASequence(r.Write):
    """All values of an owner have one number."""

    def __init__(self, configuration, owned, value, heard):
        super().__init__(configuration, replace(owned, sequence=0), value, heard)


class AdoptsTheFirst(r.ClaimBallot):
    """A claim goes on from the value of the member that answered first."""

    def _next(self, request):
        first = next(iter(self.current.granted.values()))
        self.state = replace(self.state, sequence=first.sequence, value=first.value)
        super()._next(replace(request, sequence=first.sequence, value=first.value))


class ClaimsWithoutWritingBack(r.ClaimBallot):
    """A claim trusts that what it has found on a few members is on a majority."""

    def _next(self, request):
        self._end(r.Outcome.SUCCEEDED)


class ForgetsEmptiness(r.ClaimBallot):
    """A claim that finds no value leaves nothing behind that would shut out a late one."""

    def _next(self, request):
        if request.value is None:
            self._end(r.Outcome.SUCCEEDED)
        else:
            super()._next(request)


# --- movers -----------------------------------------------------------------------------------


class InstallsWithoutSeal(r.Move):
    """The old members are only read, and go on serving."""

    def _looked(self):
        super()._looked()
        if isinstance(self.current.request, r.Seal):
            old = self.configuration.previous
            self.current = _Peek(old, operations.read_of(old))

    def _decide(self):
        if isinstance(self.current, _Peek):
            if self.current.has_majority:
                self.state = self._last_state()
                self._closed()
            elif not self.current.waiting:
                self._end_without_majority(wrote=False)
        else:
            super()._decide()


class _Peek(operations.Round):
    @property
    def granted(self):
        return self.states


class InstallsWhatTheSealFound(r.Move):
    """The state that leaves is not decided: every mover carries over what it has found itself."""

    def _next(self, request):
        if isinstance(request, r.Choose):
            self._closed()
        else:
            super()._next(request)


class SealsOne(r.Move):
    """One sealed member is taken for enough."""

    def _looked(self):
        super()._looked()
        if isinstance(self.current.request, r.Seal):
            self.current = _One(self.current.configuration, self.current.request)


class _One(operations.Round):
    @property
    def majority(self):
        return 1


class PrefersTheNewestToTheChosen(r.Move):
    """A second mover overrules what the first has chosen."""

    def _last_state(self):
        told = self.current.granted
        for member, state in told.items():
            self.current.states[member] = replace(state, chosen_by=None)
        return super()._last_state()


def lists_before_the_floor(raise_floor, list_registers):
    """The registers are listed while new ones may still be begun."""
    return list_registers, raise_floor


MUTANTS: dict[str, Cast] = {
    **{
        step.__name__: Cast(step=step)
        for step in (
            ignores_the_ballot,
            counts_an_uninstalled_member,
            serves_although_sealed,
            forgets_the_promise_at_install,
            keeps_its_own_at_install,
            installs_twice,
            begins_below_the_floor,
        )
    },
    **{m.__name__: Cast(read=m) for m in (SkipsTheWriteBack, ReadsFromOne, BelievesAfterARefusal)},
    **{m.__name__: Cast(write=m) for m in (AcceptsAMinority, ReusesASequence)},
    **{
        m.__name__: Cast(claim=m)
        for m in (
            ClaimsWithAMinority,
            AdoptsTheFirst,
            ClaimsWithoutWritingBack,
            ForgetsEmptiness,
        )
    },
    **{
        m.__name__: Cast(move=m)
        for m in (
            InstallsWithoutSeal,
            InstallsWhatTheSealFound,
            SealsOne,
            PrefersTheNewestToTheChosen,
        )
    },
    lists_before_the_floor.__name__: Cast(listing=lists_before_the_floor),
}
"""Parts with one mistake each, by its name."""
