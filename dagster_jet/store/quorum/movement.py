"""Moves registers from one set of members to the next.

A change of the members takes these steps; any process can repeat each of them:

1. *Announce*: the value of the register "store" names the new configuration and the one before. It
   is written by an owner that found the present one stable. Nothing below may begin before this
   write is confirmed. From then on the change can only be finished, and reversed by another change.
2. ``move_registers`` moves all registers, including the register "store". Owners and readers that
   still work with the old members get ``MembersChangedError``; those that already know the
   new ones move a register themselves when they need it.
3. *Stable*: once ``move_registers`` has returned, the value of "store" may omit the previous
   members. They are needed until then.
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
"""Concurrent moves: each takes some rounds of small requests and mostly waits for members."""
_BATCH = 8 * _AT_ONCE
"""Largest number of registers that are still tried after a failure."""


def move_registers(
    configuration: Configuration[Member], on_moved: Callable[[str], None] | None = None
) -> int:
    """Move every register into a configuration whose change is under way.

    When this returns, every register that was ever written is on a majority of the new members,
    When this returns, every register that was ever written is on a majority of the new members,
    and none can be begun on the previous ones any more: the configuration is then stable.

    Args:
        configuration: an announced one, with ``previous``.
        on_moved: called with the name of each register that has been moved.

    Returns:
        Number of registers.

    Raises:
        StoreUnavailableError: no majority of the previous or of the new members answers.
        MembersChangedError: another process has finished this change, and another has begun.
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
    """Return the names of all registers of the previous configuration, and close it to new ones.

    Every register that was ever written is on a majority of the previous members, so a majority's
    lists contain it. A register that a process begins concurrently is in the list as well, or its
    begin fails with ``MembersChangedError`` (``acceptor_on_member.py``). A listed register may
    be empty, for instance after a failed first claim.

    Raises:
        StoreUnavailableError: no majority of the previous members answers.
        MembersChangedError: see ``move_registers``.
    """
    previous = _previous(configuration)

    def closing_list(member: Member) -> Callable[[], set[str]]:
        def call() -> set[str]:
            raise_floor(member, configuration.number)
            return list_names(member)  # must follow the floor: see ``acceptor_on_member.py``

        return call

    majority = len(previous.members) // 2 + 1
    calls = {m: closing_list(member) for m, member in previous.members.items()}
    names, failures = fan_out(calls, enough=majority)
    if len(names) < majority:
        raise StoreUnavailableError(
            f"listing the registers needs {majority} of the {len(previous.members)} members of "
            f"configuration {previous.number}: {listed(failures)}",
            cure="Bring the members back. No data is lost while they are away.",
        )
    return set().union(*names.values())


def move_register(configuration: Configuration[Member], name: str) -> None:
    """Move one register into a configuration whose change is under way.

    Skips a register that has moved, except for members that did not answer then. After a crash
    inside, the register serves the old members, the new ones, or nobody, until any client of the
    new configuration completes the move.

    Raises:
        StoreUnavailableError: no majority of the previous or of the new members answers.
        MembersChangedError: the register has moved further on.
    """
    _compete(configuration, name, Move, _previous(configuration))


def close_register(configuration: Configuration[Member], name: str) -> Close:
    """Choose a register's last state in a configuration that has a successor.

    Raises:
        StoreUnavailableError: no majority of the members answers.
        MembersChangedError: the register has moved further on.
    """
    return _compete(configuration, name, Close, configuration)


def _compete(
    configuration: Configuration[Member],
    name: str,
    kind: type[Close],
    closing: Configuration[Member],
) -> Close:
    """Repeat a mover's operation with increasing ballots until no other mover has a higher one."""
    number = 1
    looked = Inquire(closing)  # a member that came back older must not be sealed as intact
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
        f"the register {name!r} could not be moved: another process was faster {_ATTEMPTS_MAX} "
        "times.",
        cure="Try again.",
    )


def _previous(configuration: Configuration[Member]) -> Configuration[Member]:
    if configuration.previous is None:
        raise ConfigurationError(
            f"{configuration!r} is stable: there is nothing to move its registers from.",
        )
    return configuration.previous
