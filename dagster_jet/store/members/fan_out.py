"""Concurrent calls to several members: a batch takes as long as its slowest member.

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
"""Errors of a failing member; any other error is a fault of the caller and is raised."""

BATCH_SECONDS_MAX = 120.0
"""Time limit of a call that moves data; large batches get more (``seconds_for``)."""

_BYTES_PER_SECOND_MIN = 2**20

BRIEF_SECONDS_MAX = 20.0
"""Time limit of a call that moves little data: a register, an identity, a ping. Longer than a
folder waits for another writing process (``writer_gate.py``)."""

GRACE_SECONDS = 0.25
"""Time to wait for the other members once enough have answered."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The result of a call to one member: a value, or an error.

    Attributes:
        member_id: the member that was called.
        value: the call's result; None with an error.
        error: the error that the call raised, or the error of a timeout.
        is_begun: the call has reached the member, or may have.
    """

    member_id: str
    value: T | None
    error: BaseException | None
    is_begun: bool = True


class Answers(Generic[T]):
    """The answers of members to one request, as they arrive. For one thread."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[Answer[T]] = queue.SimpleQueue()
        self._calls: dict[str, Call] = {}

    @property
    def waiting(self) -> tuple[str, ...]:
        """The members that were called and have not answered."""
        return tuple(self._calls)

    def ask(self, member_id: str, call: Callable[[], T], within_s: float) -> None:
        """Call one more member; its answer counts if it arrives in time."""

        def work() -> None:
            self._arrived.put(_answered(member_id, call))

        self._calls[member_id] = Call(work, within_s)
        try:
            bulkhead_of(member_id).begin(self._calls[member_id])
        except StoreUnavailableError as error:
            self._arrived.put(Answer(member_id, None, error, is_begun=False))

    def next(self, within_s: float | None = None) -> Answer[T] | None:
        """Return the next answer, or the timeout error of a member.

        Args:
            within_s: longest time to wait; None: until the next call times out.

        Returns:
            None if no answer arrived within that time.
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
                if self._calls[late].deadline > until:
                    continue  # it has made progress
                answer = Answer(late, None, hangs(late))
                self._abandon(late)
            else:
                if answer.member_id not in self._calls:
                    continue  # it arrived just after it was abandoned
                del self._calls[answer.member_id]
            return answer

    def has_overdue_calls(self, member_id: str) -> bool:
        """Whether a member has not returned from an earlier abandoned call."""
        return bulkhead_of(member_id).has_overdue_calls()

    def abandon(self) -> None:
        """Stop waiting for all members."""
        for member_id in self.waiting:
            self._abandon(member_id)

    def _abandon(self, member_id: str) -> None:
        bulkhead_of(member_id).abandon(self._calls.pop(member_id))


new_answers: Callable[[], Answers[object]] = Answers
"""Creates the object that calls members; a simulation that controls the order replaces it."""


def fan_out(
    calls: Mapping[str, Callable[[], T]],
    *,
    within_s: float | None = None,
    enough: int | None = None,
) -> tuple[dict[str, T], dict[str, Failure]]:
    """Run one call per member and wait for all of them.

    Calls must not fan out themselves: they would wait for the threads they occupy.

    Args:
        calls: calls by member id.
        within_s: time limit of each call; then it fails with ``StoreUnavailableError``. A call
            that reports progress (``bulkhead.py``) has this time again.
            None: ``BATCH_SECONDS_MAX``.
        enough: after this number of results, wait only ``GRACE_SECONDS`` for the others.

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
    """Return how long to wait for the rest: 0 if all of them have overdue calls."""
    return 0 if all(answers.has_overdue_calls(m) for m in answers.waiting) else GRACE_SECONDS


def seconds_for(size: int) -> float:
    """Return the time limit of a call that writes ``size`` bytes, also over a slow network."""
    return BATCH_SECONDS_MAX + size / _BYTES_PER_SECOND_MIN


def hangs(member_id: str) -> StoreUnavailableError:
    """Return the error of a member that did not answer in time."""
    return StoreUnavailableError(
        f"the store member {member_id} did not answer in time.",
        cure="Other replicas are used meanwhile. Check the member and the network to it.",
    )


def _answered(member_id: str, call: Callable[[], T]) -> Answer[T]:
    try:
        return Answer(member_id, call(), None)
    except BaseException as error:  # noqa: BLE001 - raised in the caller
        return Answer(member_id, None, error)
