"""Finds out which members a store has now, starting from members it may have had at any time.

The register whose value names the members is itself on these members, and moves with them. So
somebody who knows only some URLs, of members that may have left or not yet joined, has to follow
it. What can be relied on:

- A value of configuration c's register names c, or announces c+1 together with the members of c
  (``movement.py``: one change at a time; a number means one set of members). So *any* copy of a
  value, old or unconfirmed, says truly who the members of *its own* configuration are.
- A copy is therefore only used to learn where to ask. What it announces is acted on only after a
  regular read of its configuration has returned it: such a read is linearizable, it returns
  confirmed values only, and it is refused by a configuration that the register has left. An
  announcement that did not succeed may be in a copy; it is never followed.
- A refusal proves that the next configuration was announced and confirmed, since nobody seals
  before that. Then the configuration may be closed by anyone (``Close``), and the state it closes
  with contains the announcement.

Each step goes up by one configuration, or ends with a read that names the very configuration it
was made in. This value was the newest one at a moment during that read, so at that moment its
members were the store's members. What changes later is noticed as it is by everybody else: by
``StaleConfigurationError``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dagster_jet.errors import StaleConfigurationError, StoreMismatchError, StoreUnavailableError
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
            names it has moved into it already.
        value: as read in this configuration.
    """

    configuration: Configuration[Member]
    value: RegisterValue


def discover_configuration(
    name: str, members: Mapping[str, Member], parse: Parse
) -> Discovered | None:
    """Find the newest configuration of a store, and finish a half-done move of its register.

    Args:
        name: the register whose value names the members.
        members: where to begin: any members that the store has, had or will have.
        parse: reads a value into the configuration it names: its number, its members, and while
            the change to it is under way the previous members. It opens the members, also those
            not in ``members``; one that cannot be opened here is given as a member that raises
            ``StoreUnavailableError`` at every call. It should return members that verify their
            identity (``identity.py``): majorities are counted over what it returns.

    Returns:
        The configuration and its value, None if no member that answers has ever held a value: a
        store that does not exist yet, or of which nobody answers.

    Raises:
        StoreUnavailableError: on the way, no majority of a configuration answered.
        StoreMismatchError: a value names a configuration it cannot be in.
    """
    known = dict(members)
    here = _where_to_ask(name, known, parse)
    for _ in range(_STEPS_MAX):
        if here is None:
            return None
        known.update(here.members)
        try:
            value = RegisterClient(here, name).read()
        except StaleConfigurationError:
            here = _onward(name, here, known, parse)
            continue
        if value is None:
            return None  # the copy that led here was of a write that never succeeded
        named = parse(value.value)
        if named.number == here.number:
            return Discovered(named, value)
        here = _next(name, here.number, named)
    raise StoreUnavailableError(
        f"the register {name!r} moved on {_STEPS_MAX} times while it was being followed.",
        cure="Open the store again.",
    )


def _onward(
    name: str, left: Configuration[Member], known: Mapping[str, Member], parse: Parse
) -> Configuration[Member] | None:
    """Return a configuration after the one the register was seen to have left."""
    seen = _where_to_ask(name, known, parse)
    if seen is not None and seen.number > left.number:
        return seen
    try:
        closed = close_register(left, name).state
    except StaleConfigurationError:
        # Its members are further on than the next one; they say where.
        return _where_to_ask(name, known, parse)
    if closed.value is None:
        raise _misplaced(name, left.number, "nothing")
    if closed.configuration > left.number:
        return _home_of(name, closed, parse)
    return _next(name, left.number, parse(closed.value))


def _where_to_ask(
    name: str, known: Mapping[str, Member], parse: Parse
) -> Configuration[Member] | None:
    """Return the newest configuration that any copy is in."""
    asked: dict[str, Member] = {}
    newest: AcceptorState | None = None
    home: Configuration[Member] | None = None
    more = dict(known)
    while more:
        # Copies are hints: who hangs is not waited for, and neither is a hint too few.
        calls = {m: _call(member, name) for m, member in more.items()}
        states, late = fan_out(calls, within_s=BRIEF_SECONDS_MAX, enough=len(more) // 2 + 1)
        if newest is None and all(state.value is None for state in states.values()):
            # That there is no store at all is more than a hint: one would be created.
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
    """Return the configuration a copy is in, by what its own value says."""
    assert state.value is not None
    named = parse(state.value)
    if named.number == state.configuration:
        return named
    if named.number == state.configuration + 1 and named.previous is not None:
        return named.previous
    raise _misplaced(name, state.configuration, repr(named))


def _next(name: str, number: int, named: Configuration[Member]) -> Configuration[Member]:
    """Return an announced configuration; where it was confirmed, the next one is announced."""
    if named.number == number + 1 and named.previous is not None:
        return named
    raise _misplaced(name, number, repr(named))


def _misplaced(name: str, number: int, named: str) -> StoreMismatchError:
    return StoreMismatchError(
        f"the register {name!r} of configuration {number} names {named}, expected {number} or the "
        f"change to {number + 1}.",
        cure="The store was written by something that does not follow this library's rules.",
    )
