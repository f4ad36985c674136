"""Sends an operation's rounds to real members, concurrently.

A round ends when it is decided: enough members have answered, and the others have had a short grace
time. So a member that hangs blocks nobody. It may still carry out the request much later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from dagster_jet.errors import MembersChangedError, StoreError, StoreUnavailableError
from dagster_jet.store.identity import member_rolled_back
from dagster_jet.store.members import fan_out
from dagster_jet.store.members.fan_out import Answer, Answers
from dagster_jet.store.members.member import Member
from dagster_jet.store.quorum.acceptor_on_member import Silence, ask
from dagster_jet.store.register import (
    Inquire,
    Operation,
    Promise,
    Read,
    Reply,
    ReplyStatus,
    Request,
    Round,
    Seal,
)

Failures = dict[str, StoreError]
"""The reason why a member gave no answer, by member id."""


def drive(operation: Operation, name: str) -> Failures:
    """Run an operation on a register to its end; return the failures of silent members."""
    failures: Failures = {}
    doubts: list[Round] = []
    while operation.outcome is None:
        round_ = operation.current
        _drive_round(operation, name, failures)
        if round_.doubted.keys() - round_.said(ReplyStatus.FORGETFUL).keys():
            doubts.append(round_)
    for round_ in doubts:
        # Also done if enough others have answered: a member that came back older must not be
        # trusted elsewhere. The inquiry carries the known change counts; such members then say so.
        inquiry = Inquire(round_.configuration, {round_.configuration.number: round_.heard})
        _drive_round(inquiry, name, failures)
    return failures


def _drive_round(operation: Operation, name: str, failures: Failures) -> None:
    answers: Answers[Reply | Silence] = fan_out.new_answers()  # type: ignore[assignment]
    try:
        _ask_and_hear(operation, name, answers, failures)
    finally:
        answers.abandon()


def _ask_and_hear(
    operation: Operation, name: str, answers: Answers[Reply | Silence], failures: Failures
) -> None:
    round_ = operation.current
    members: Mapping[str, Member] = round_.configuration.members
    unasked = deque(round_.waiting)
    # One member after the other, in a fixed order: of two concurrent claims the first member then
    # picks one, whereas parallel requests could split the votes.
    is_one_by_one = isinstance(round_.request, Promise | Seal)

    def ask_next() -> None:
        member_id = unasked.popleft()
        call = _call(member_id, members[member_id], name, round_.request)
        answers.ask(member_id, call, fan_out.BRIEF_SECONDS_MAX)

    while operation.current is round_ and not (operation.outcome and is_one_by_one):
        while unasked and not (is_one_by_one and answers.waiting):
            ask_next()
        if not answers.waiting:
            return
        if _is_decided(operation, round_):
            answer = answers.next(fan_out.grace_seconds(answers))
            if answer is None:
                for member_id in answers.waiting:
                    late = fan_out.hangs(member_id)
                    _hand_in(operation, Answer(member_id, None, late), failures)
                return
        else:
            answer = answers.next(fan_out.grace_seconds(answers) if unasked else None)
            if answer is None:
                ask_next()  # a member that hangs does not delay the next
                continue
        _hand_in(operation, answer, failures)


def _is_decided(operation: Operation, round_: Round) -> bool:
    """Whether more answers would not change the result."""
    refused = len(round_.answers) - len(round_.granted)
    believed = len(round_.answers) - len(round_.doubted)
    is_look = isinstance(round_.request, Read)
    if is_look:
        # "Not installed yet" is an answer, too: a mover needs the answers of a majority.
        refused -= len(round_.said(ReplyStatus.UNINSTALLED))
    return (
        operation.outcome is not None
        or round_.has_majority
        or refused > len(round_.members) - round_.majority
        or (is_look and believed >= round_.majority)
    )


def _hand_in(operation: Operation, answer: Answer[Reply | Silence], failures: Failures) -> None:
    if isinstance(answer.value, Reply):
        operation.receive(answer.member_id, answer.value)
        if answer.value.status is ReplyStatus.FORGETFUL:
            failures[answer.member_id] = member_rolled_back(answer.member_id)
    elif isinstance(answer.value, Silence):
        failures[answer.member_id] = answer.value.error
        operation.no_answer(answer.member_id, may_have_applied=answer.value.may_have_applied)
    elif isinstance(answer.error, StoreUnavailableError):
        failures[answer.member_id] = answer.error
        operation.no_answer(answer.member_id, may_have_applied=answer.is_begun)
    elif answer.error is not None:
        raise answer.error


def _call(
    member_id: str, member: Member, name: str, request: Request
) -> Callable[[], Reply | Silence]:
    return lambda: ask(member, name, request, member_id)


def listed(failures: Mapping[str, StoreError]) -> str:
    """Return the failures as part of a sentence."""
    return "; ".join(f"{member_id}: {error}" for member_id, error in sorted(failures.items()))


def unavailable(name: str, operation: Operation, failures: Failures) -> StoreUnavailableError:
    """Return the error of an operation that got too few answers."""
    members, majority = operation.current.members, operation.current.majority
    return StoreUnavailableError(
        f"the register {name!r} needs {majority} of {len(members)} members: {listed(failures)}",
        cure="Bring the members back. No data is lost while they are away.",
    )


def stale(name: str, number: int) -> MembersChangedError:
    """Return the error of an operation whose configuration has a successor."""
    return MembersChangedError(
        f"the store's members have changed: the register {name!r} has left configuration "
        f"{number}, which this process still uses.",
        cure="Open the store again. A job restarts by itself.",
    )
