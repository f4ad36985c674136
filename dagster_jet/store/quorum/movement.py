"""Moves registers from one set of members to the next.

A change of the members goes through these steps, each of which can be repeated by anybody:

1. *Announce*: the value of the register "store" names the new configuration and the one before. It
   is written by an owner that found the present one stable. Nothing below may begin before this
   write is confirmed; from then on the change can only be finished, and undone by another change.
2. ``move_registers``: all registers, the register "store" included, are moved. Owners and readers
   that still work with the old members get ``StaleConfigurationError``; those that
   already know the new ones move a register themselves when they need it.
3. *Stable*: once ``move_registers`` has returned, the value of "store" may leave out the previous
   members. They are not needed any more; before, they are.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dagster_jet.errors import ConfigurationError, StoreUnavailableError
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import Member
from dagster_jet.store.quorum.acceptor_on_member import list_names, raise_floor
from dagster_jet.store.quorum.rounds import drive, listed, stale, unavailable
from dagster_jet.store.register import Ballot, Close, Configuration, Inquire, Move, Outcome
from dagster_jet.system.backoff import give_way

_ATTEMPTS_MAX = 100
_AT_ONCE = 16
"""Each register takes some rounds of small requests, and waits for its members most of the time."""
_BATCH = 8 * _AT_ONCE
"""After a failure so many are still tried, and no more."""


def move_registers(
    configuration: Configuration[Member], on_moved: Callable[[str], None] | None = None
) -> int:
    """Move every register there is into a configuration whose change is under way.

    When this returns, every register that was ever written is on a majority of the new members,
    and none can be begun on the previous ones any more: the configuration may count as stable.
    After a crash inside, some registers have moved; call it again.

    Args:
        configuration: announced, with ``previous``.
        on_moved: called with the name of each register that has been moved.

    Returns:
        How many registers there are.

    Raises:
        StoreUnavailableError: no majority of the previous or of the new members answers.
        StaleConfigurationError: this change was finished by somebody else, and another has begun.
    """
    names = sorted(list_registers(configuration))
    move = partial(move_register, configuration)
    with ThreadPoolExecutor(_AT_ONCE, "jet-move") as pool:
        for begin in range(0, len(names), _BATCH):
            batch = names[begin : begin + _BATCH]
            for name, moved in [(name, pool.submit(move, name)) for name in batch]:
                moved.result()
                if on_moved is not None:
                    on_moved(name)
    return len(names)


def list_registers(configuration: Configuration[Member]) -> set[str]:
    """Return the names of all registers of the previous configuration; it begins no new ones.

    Every register that was ever written is on a majority of the previous members, so a majority's
    lists name it. What a process begins there at this moment is in the list as well, or fails with
    ``StaleConfigurationError`` (``acceptor_on_member.py``). A name may belong to a register without
    content, for instance one whose first claim has failed.

    Raises:
        StoreUnavailableError: no majority of the previous members answers.
        StaleConfigurationError: see ``move_registers``.
    """
    previous = _previous(configuration)

    def closing_list(member: Member) -> Callable[[], set[str]]:
        def call() -> set[str]:
            raise_floor(member, configuration.number)
            return list_names(member)  # only now: see the module's text

        return call

    majority = len(previous.members) // 2 + 1
    calls = {m: closing_list(member) for m, member in previous.members.items()}
    names, failures = fan_out(calls, enough=majority)
    if len(names) < majority:
        raise StoreUnavailableError(
            f"listing the registers needs {majority} of the {len(previous.members)} members of "
            f"configuration {previous.number}: {listed(failures)}",
            cure="Bring the members back; nothing was lost by waiting.",
        )
    return set().union(*names.values())


def move_register(configuration: Configuration[Member], name: str) -> None:
    """Move one register into a configuration whose change is under way.

    Does nothing to a register that has moved, except for members that did not answer then. After a
    crash inside, the register serves the old members, the new ones, or nobody until this is done
    again, which any client of the new configuration does by itself.

    Raises:
        StoreUnavailableError: no majority of the previous or of the new members answers.
        StaleConfigurationError: the register has moved further on.
    """
    _compete(configuration, name, Move, _previous(configuration))


def close_register(configuration: Configuration[Member], name: str) -> Close:
    """Choose a register's last state in a configuration that is known to have a successor.

    Raises:
        StoreUnavailableError: no majority of the members answers.
        StaleConfigurationError: the register has moved further on.
    """
    return _compete(configuration, name, Close, configuration)


def _compete(
    configuration: Configuration[Member],
    name: str,
    kind: type[Close],
    closing: Configuration[Member],
) -> Close:
    """Repeat an operation of a mover, with ever higher ballots, until no other mover is above."""
    number = 1
    looked = Inquire(closing)  # whoever came back older there must not be sealed as a whole member
    drive(looked, name)
    heard = looked.heard
    for attempt in range(_ATTEMPTS_MAX):
        operation = kind(configuration, Ballot(number, secrets.token_hex(8)), heard)
        failures = drive(operation, name)
        heard = operation.heard
        if operation.outcome is Outcome.SUCCEEDED:
            return operation
        if operation.outcome is Outcome.STALE:
            raise stale(name, configuration.number)
        if operation.outcome is Outcome.DOUBTED:
            continue
        if operation.outcome is not Outcome.FENCED:
            raise unavailable(name, operation, failures)
        met = operation.fenced_by
        number = max(number, met.number if met else 0) + 1
        give_way(attempt)
    raise StoreUnavailableError(
        f"the register {name!r} could not be moved: {_ATTEMPTS_MAX} times another process was "
        "faster.",
        cure="Try again.",
    )


def _previous(configuration: Configuration[Member]) -> Configuration[Member]:
    if configuration.previous is None:
        raise ConfigurationError(
            f"{configuration!r} is stable: there is nothing to move its registers from.",
        )
    return configuration.previous
