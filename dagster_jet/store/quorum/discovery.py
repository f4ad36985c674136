"""Finds the current members of a store, starting from members of any time.

The register whose value names the members is itself on these members, and moves with them. A
process that knows only some URLs, of members that may have left or not yet joined, has to follow
it. The search relies on these facts:

- A value of configuration c's register names c, or announces c+1 together with the members of c
  (``movement.py``: one change at a time; a number means one set of members). So *any* copy of a
  value, old or unconfirmed, correctly lists the members of *its own* configuration.
- A copy is used only to find the members to ask. Its announcement is followed only after a regular
  read of its configuration has returned it. Such a read is linearizable, returns confirmed values
  only, and is refused by a configuration that the register has left. A copy may contain an
  announcement that did not succeed; it is never followed.
- A refusal proves that the next configuration was announced and confirmed, since nobody seals
  before that. Then any process may close the configuration (``Close``), and the closing state
  contains the announcement.

Each step goes up by one configuration, or ends with a read that names its own configuration. This
value was the newest one at some time during that read, so its members were the store's members at
that time. Later changes are noticed like everywhere else: by ``MembersChangedError``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dagster_jet.errors import MembersChangedError, StoreMismatchError, StoreUnavailableError
from dagster_jet.store.members.fan_out import BRIEF_SECONDS_MAX, fan_out
from dagster_jet.store.members.member import Member
from dagster_jet.store.quorum.acceptor_on_member import state_of
from dagster_jet.store.quorum.client import RegisterClient, RegisterValue
from dagster_jet.store.quorum.movement import close_register
from dagster_jet.store.register import AcceptorState, Configuration

Parse = Callable[[bytes], Configuration[Member]]

_STEPS_MAX = 1_000


@dataclass(frozen=True)
class Discovered:
    """The newest configuration, and the value that names it.

    Attributes:
        configuration: with ``previous`` while the change to it is under way; the register that
            names it has already moved into it.
        value: the value read in this configuration.
    """

    configuration: Configuration[Member]
    value: RegisterValue


def discover_configuration(
    name: str, members: Mapping[str, Member], parse: Parse
) -> Discovered | None:
    """Find the newest configuration of a store; complete a half-done move of its register.

    Args:
        name: the register whose value names the members.
        members: the members to start from: any current, former or future members.
        parse: parses a value into its configuration: number, members, and the previous members
            while the change is under way. It opens the members, including those not in
            ``members``; one that cannot be opened here must be returned as a member whose calls
            raise ``StoreUnavailableError``. It should return members that verify their identity
            (``identity.py``): majorities are counted over its result.

    Returns:
            The configuration and its value; None if no member that answers has ever held a value:
            the store does not exist yet, or no member answers.

        Raises:
            StoreUnavailableError: no majority of a configuration on the way answered.
            StoreMismatchError: a value names a configuration that it cannot belong to.
    """
    known = dict(members)
    here = _where_to_ask(name, known, parse)
    for _ in range(_STEPS_MAX):
        if here is None:
            return None
        known.update(here.members)
        try:
            value = RegisterClient(here, name).read()
        except MembersChangedError:
            here = _onward(name, here, known, parse)
            continue
        if value is None:
            return None  # the copy found was from a write that never succeeded
        named = parse(value.value)
        if named.number == here.number:
            return Discovered(named, value)
        here = _next(name, here.number, named)
    raise StoreUnavailableError(
        f"the register {name!r} moved to a newer configuration {_STEPS_MAX} times while it was "
        "being read.",
        cure="Open the store again.",
    )


def _onward(
    name: str, left: Configuration[Member], known: Mapping[str, Member], parse: Parse
) -> Configuration[Member] | None:
    """Return a configuration after the one that the register has left."""
    seen = _where_to_ask(name, known, parse)
    if seen is not None and seen.number > left.number:
        return seen
    try:
        closed = close_register(left, name).state
    except MembersChangedError:
        # Its members are in a later configuration than the next; their copies name it.
        return _where_to_ask(name, known, parse)
    if closed.value is None:
        raise _misplaced(name, left.number, "nothing")
    if closed.configuration > left.number:
        return _home_of(name, closed, parse)
    return _next(name, left.number, parse(closed.value))


def _where_to_ask(
    name: str, known: Mapping[str, Member], parse: Parse
) -> Configuration[Member] | None:
    """Return the newest configuration of any copy."""
    asked: dict[str, Member] = {}
    newest: AcceptorState | None = None
    home: Configuration[Member] | None = None
    more = dict(known)
    while more:
        # Copies are hints: members that hang are not waited for; a missing hint is no problem.
        calls = {m: _call(member, name) for m, member in more.items()}
        states, late = fan_out(calls, within_s=BRIEF_SECONDS_MAX, enough=len(more) // 2 + 1)
        if newest is None and all(state.value is None for state in states.values()):
            # "No store" is more than a hint, because one would be created.
            calls = {member_id: calls[member_id] for member_id in late}
            states.update(fan_out(calls, within_s=BRIEF_SECONDS_MAX)[0])
        asked.update(more)
        more = {}
        for state in states.values():
            if state.value is None or (newest is not None and _age(state) <= _age(newest)):
                continue
            newest, home = state, _home_of(name, state, parse)
            more = {m: member for m, member in home.members.items() if m not in asked}
    return home


def _call(member: Member, name: str) -> Callable[[], AcceptorState]:
    return lambda: state_of(member, name)


def _age(state: AcceptorState) -> tuple[int, object]:
    return (state.configuration, state.place)


def _home_of(name: str, state: AcceptorState, parse: Parse) -> Configuration[Member]:
    """Return the configuration of a copy, by its own value."""
    assert state.value is not None
    named = parse(state.value)
    if named.number == state.configuration:
        return named
    if named.number == state.configuration + 1 and named.previous is not None:
        return named.previous
    raise _misplaced(name, state.configuration, repr(named))


def _next(name: str, number: int, named: Configuration[Member]) -> Configuration[Member]:
    """Return a confirmed announcement; it must name the next configuration."""
    if named.number == number + 1 and named.previous is not None:
        return named
    raise _misplaced(name, number, repr(named))


def _misplaced(name: str, number: int, named: str) -> StoreMismatchError:
    return StoreMismatchError(
        f"the register {name!r} of configuration {number} names {named}, expected {number} or the "
        f"change to {number + 1}.",
        cure="Another program than this library has written to the store.",
    )
