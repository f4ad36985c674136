"""Calls to several members at once: a batch takes as long as the slowest member, not their sum.

Every call has a deadline, whatever the member's own time-outs are: a disk that hangs has none.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.members.bulkhead import Call, bulkhead_of

T = TypeVar("T")

Failure = StoreUnavailableError | StoreUnwritableError
"""What a member's failure looks like; anything else is a fault of the caller and is raised."""

BATCH_SECONDS_MAX = 120.0
"""For a call that moves data, besides the time that a large batch takes (``seconds_for``)."""

_BYTES_PER_SECOND_MIN = 2**20

BRIEF_SECONDS_MAX = 20.0
"""For a call that moves next to nothing: a register, an identity, a ping. Longer than a folder
waits for another process that writes (``writer_gate.py``)."""

GRACE_SECONDS = 0.25
"""How long the others are waited for once enough members have answered."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What came of a call to one member: a value, or an error.

    Attributes:
        member_id: who was asked.
        value: what the call returned; None with an error.
        error: what it raised, or that it did not come back in time.
        is_begun: the call has reached the member, or may have.
    """

    member_id: str
    value: T | None
    error: BaseException | None
    is_begun: bool = True


class Answers(Generic[T]):
    """The answers of members to one question, as they come in. For one thread."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[Answer[T]] = queue.SimpleQueue()
        self._calls: dict[str, Call] = {}

    @property
    def waiting(self) -> tuple[str, ...]:
        """The members that have been asked and have not answered."""
        return tuple(self._calls)

    def ask(self, member_id: str, call: Callable[[], T], within_s: float) -> None:
        """Put the question to one more member; its answer counts if it comes in time."""

        def work() -> None:
            self._arrived.put(_answered(member_id, call))

        self._calls[member_id] = Call(work, within_s)
        try:
            bulkhead_of(member_id).begin(self._calls[member_id])
        except StoreUnavailableError as error:
            self._arrived.put(Answer(member_id, None, error, is_begun=False))

    def next(self, within_s: float | None = None) -> Answer[T] | None:
        """Return the next answer, or that a member did not answer in its time.

        Args:
            within_s: how long to wait for it at most; None: as long as the members have.

        Returns:
            None if none came within that time.
        """
        end = None if within_s is None else time.monotonic() + within_s
        while True:
            late = min(self._calls, key=lambda member_id: self._calls[member_id].deadline)
            until = self._calls[late].deadline
            try:
                answer = self._arrived.get(
                    timeout=max(0, min(until, end or until) - time.monotonic())
                )
            except queue.Empty:
                if end is not None and end < until:
                    return None
                answer = Answer(late, None, hangs(late))
                self._abandon(late)
            else:
                if answer.member_id not in self._calls:
                    continue  # it came just after it was given up
                del self._calls[answer.member_id]
            return answer

    def has_overdue_calls(self, member_id: str) -> bool:
        """Whether a member has not even answered an earlier call that was abandoned."""
        return bulkhead_of(member_id).has_overdue_calls()

    def abandon(self) -> None:
        """Stop waiting for all members."""
        for member_id in self.waiting:
            self._abandon(member_id)

    def _abandon(self, member_id: str) -> None:
        bulkhead_of(member_id).abandon(self._calls.pop(member_id))


new_answers: Callable[[], Answers[object]] = Answers
"""How members are asked; a simulation that owns the order of things puts its own here."""


def fan_out(
    calls: Mapping[str, Callable[[], T]],
    *,
    within_s: float | None = None,
    enough: int | None = None,
) -> tuple[dict[str, T], dict[str, Failure]]:
    """Run one call per member and wait for all of them.

    Calls must not fan out themselves: they would wait for the threads they occupy.

    Args:
        calls: by member id.
        within_s: how long a call may take; then the member counts as one that does not answer.
            None: ``BATCH_SECONDS_MAX``.
        enough: with so many results, wait only a moment for the others.

    Returns:
        The results and the failures, by member id.
    """
    results: dict[str, T] = {}
    failures: dict[str, Failure] = {}
    answers: Answers[T] = new_answers()  # type: ignore[assignment]
    for member_id, call in calls.items():
        answers.ask(member_id, call, BATCH_SECONDS_MAX if within_s is None else within_s)
    try:
        while answers.waiting:
            is_enough = enough is not None and len(results) >= enough
            answer = answers.next(grace_seconds(answers) if is_enough else None)
            if answer is None:
                failures.update({member_id: hangs(member_id) for member_id in answers.waiting})
                break
            if answer.error is None:
                results[answer.member_id] = answer.value  # type: ignore[assignment]
            elif isinstance(answer.error, StoreUnavailableError | StoreUnwritableError):
                failures[answer.member_id] = answer.error
            else:
                raise answer.error
    finally:
        answers.abandon()
    order = list(calls)
    return (
        {member_id: results[member_id] for member_id in order if member_id in results},
        {member_id: failures[member_id] for member_id in order if member_id in failures},
    )


def grace_seconds(answers: Answers[T]) -> float:
    """Return how long to wait for the rest: not at all if all of them have calls overdue."""
    return 0 if all(answers.has_overdue_calls(m) for m in answers.waiting) else GRACE_SECONDS


def seconds_for(size: int) -> float:
    """Return the bound of a call that writes so many bytes: also a slow network must do it."""
    return BATCH_SECONDS_MAX + size / _BYTES_PER_SECOND_MIN


def hangs(member_id: str) -> StoreUnavailableError:
    """Return the error of a member that does not answer in time."""
    return StoreUnavailableError(
        f"the store member {member_id} did not answer in time.",
        cure="Other replicas serve meanwhile; check the member and the way to it.",
    )


def _answered(member_id: str, call: Callable[[], T]) -> Answer[T]:
    try:
        return Answer(member_id, call(), None)
    except BaseException as error:  # noqa: BLE001 - raised where it was asked for
        return Answer(member_id, None, error)
