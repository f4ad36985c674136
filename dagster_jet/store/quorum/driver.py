"""Carries an operation's rounds to real members, all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dagster_jet.errors import StaleConfigurationError, StoreError, StoreUnavailableError
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import Member
from dagster_jet.store.quorum.acceptor_on_member import Silence, ask
from dagster_jet.store.register import Operation, Promise, Reply, Request, Seal

Failures = dict[str, StoreError]
"""By member id, why a member gave no answer."""


def drive(operation: Operation, name: str) -> Failures:
    """Run an operation on the register of a name until it ends; return who was silent, and why."""
    failures: Failures = {}
    while operation.outcome is None:
        members: Mapping[str, Member] = operation.current.configuration.members
        request, waiting = operation.current.request, operation.current.waiting
        if isinstance(request, Promise | Seal):
            # One member after the other, always in one order: of two claims at one moment the
            # first member then picks one, where asking at once could split the votes.
            waiting = waiting[:1]
        answers, _ = fan_out({m: _call(members[m], name, request) for m in waiting})
        for member_id, answer in answers.items():
            if isinstance(answer, Reply):
                operation.receive(member_id, answer)
            else:
                failures[member_id] = answer.error
                operation.no_answer(member_id, may_have_applied=answer.may_have_applied)
    return failures


def _call(member: Member, name: str, request: Request) -> Callable[[], Reply | Silence]:
    return lambda: ask(member, name, request)


def listed(failures: Mapping[str, StoreError]) -> str:
    """Return the failures as a part of a sentence."""
    return "; ".join(f"{member_id}: {error}" for member_id, error in sorted(failures.items()))


def unavailable(name: str, operation: Operation, failures: Failures) -> StoreUnavailableError:
    """Return the error of an operation that too few members answered."""
    members, majority = operation.current.members, operation.current.majority
    return StoreUnavailableError(
        f"the register {name!r} needs {majority} of {len(members)} members: {listed(failures)}",
        cure="Bring the members back; nothing was lost by waiting.",
    )


def stale(name: str, number: int) -> StaleConfigurationError:
    """Return the error of an operation whose configuration has a successor."""
    return StaleConfigurationError(
        f"the store's members have changed: the register {name!r} has left configuration "
        f"{number}, which this process still works with.",
        cure="Open the store again; a job restarts by itself.",
    )
