"""Polls each source on its own thread, so that a slow or unavailable source delays neither the
others nor an epoch.

The loop requests polls and accepts the answers as they arrive. A source that cannot be read now is
polled again with growing pauses until it answers; the job continues without it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from dagster_jet.contract import Backlog, Lag, SourceReader
from dagster_jet.errors import (
    FencedError,
    JetError,
    Reaction,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.execution.connector_errors import reaction_to
from dagster_jet.system.backoff import Backoff

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

GRACE_S = 0.05
"""Seconds that one look waits for outstanding poll results. Each result is waited for once."""
_STALE = 2
"""A poll is repeated right before an epoch once its answer is older than this multiple of its own
duration."""
REPORT_AFTER_S = 10.0
"""Outages shorter than this many seconds are shown, but emit no event."""
UNANSWERED_S = 10.0
"""A poll that has not returned after so many seconds is an outage, too: a frozen network raises
nothing, and meanwhile no time passes for the source's event time."""
_LONGER, _LAST_POLLS = 3, 10
"""A source whose polls take long has more time: this multiple of the longest of its last polls."""
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 10.0
_LOOK_S = 0.1
_END_S = 2.0


@dataclass(frozen=True)
class Outage:
    """A source that cannot be read."""

    source: str
    since_ms: int
    """Start of the outage, by wall clock in ms."""
    reason: str


@dataclass(frozen=True)
class PollResult:
    """Result of one poll."""

    source: str
    found: Any = None
    error: BaseException | None = None
    asked_at: float = 0.0
    """When the call began that has answered, by `SourcePolling.clock`."""
    took_s: float = 0.0
    """Duration of this call."""


class SourceThread:
    """The thread on which a reader polls, acknowledges and closes, because client libraries are
    often bound to a thread. It is a daemon thread, so that a call that hangs does not keep the
    process alive."""

    def __init__(self, name: str, reader: SourceReader) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reader = reader
        self._thread = threading.Thread(target=self._run, name=f"jet-source-{name}", daemon=True)
        self._thread.start()

    def do(self, call: Callable[[], _T]) -> Future[_T]:
        """Queues a call on the thread."""
        made: Future[_T] = Future()

        def work() -> None:
            if not made.set_running_or_notify_cancel():
                return
            try:
                made.set_result(call())
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                made.set_exception(error)

        self._work.put(work)
        return made

    def close(self) -> None:
        """Closes the reader after the queued calls."""
        self._work.put(None)

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread's end; returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        try:
            self._reader.close()
        except Exception as error:  # noqa: BLE001 - the reader is not used any more
            _logger.warning("%s: closing raised %r", self._thread.name, error)


@dataclass
class SourcePolling:
    """Polls all sources of one execution; one thread calls it.

    Answers arrive in `answers`; the thread that takes them passes them to `accept`.
    """

    job: str
    readers: Mapping[str, SourceReader]
    now_ms: Callable[[], int]
    report: Callable[[Outage, bool], None]
    """Reports that an outage lasts (False) or is over (True). Called on any thread."""
    retried: Callable[[str, str | None], None] = lambda source, reason: None
    """Reports why a source is waited for; None once it answers. Called on any thread."""
    clock: Callable[[], float] = time.monotonic
    answers: queue.SimpleQueue[PollResult] = field(default_factory=queue.SimpleQueue)
    outages: dict[str, Outage] = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)
    """Running polls by source."""
    _took_s: dict[str, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque([0.0], _LAST_POLLS))
    )
    """Durations of the last answered polls by source."""
    _has_ended: bool = False
    """Whether the input has ended: only backlogs are read."""
    _heard: set[str] = field(default_factory=set)
    """Sources that have answered at least once."""
    _reported: set[str] = field(default_factory=set)
    """Sources whose outage was reported."""
    _closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.threads = {name: SourceThread(name, r) for name, r in self.readers.items()}

    @property
    def silent(self) -> Set[str]:
        """Returns the sources with an unknown backlog: they have not answered yet, or cannot be
        read now."""
        return (self.readers.keys() - self._heard) | set(self.outages)

    def ask(self, *, besides: Set[str] = frozenset()) -> None:
        """Starts a poll of every source without a running one. Also called while an epoch's tasks
        run, so that the next epoch need not wait for the answers."""
        for name in self._read_on() - self._asked_at.keys() - besides:
            self._asked_at[name] = self.clock()
            self.threads[name].do(lambda name=name: self._poll(name))  # type: ignore[misc]

    def accept(self, answer: PollResult) -> None:
        """Passes a poll's result to the reader.

        Raises:
            JetError: the poll has failed and is not retryable.
        """
        self._asked_at.pop(answer.source, None)
        self._took_s[answer.source].append(answer.took_s)
        self._end_outage(answer.source)
        if answer.source not in self._read_on():
            return  # found after the end of the input, by a poll beside an epoch
        if answer.error is not None:
            raise answer.error
        self.readers[answer.source].accept(answer.found)
        self._heard.add(answer.source)

    def poll(self) -> None:
        """Accepts the available results, polls again and waits briefly for the results, so that an
        epoch takes what is there when it begins. A source with input is not polled again if that
        would take long. Raises the errors of `accept`."""
        fresh = {answer.source for answer in self._accept_all() if not self._is_repeated(answer)}
        self._note_unanswered()
        self.ask(besides=fresh)
        while self._asked_at:
            wait_s = max(self._asked_at.values()) + GRACE_S - self.clock()
            try:
                self.accept(self.answers.get(wait_s > 0, max(wait_s, 0)))
            except queue.Empty:
                return

    def _is_repeated(self, answer: PollResult) -> bool:
        """Whether another poll finds more rows than it costs time, or none are known."""
        if not self.readers[answer.source].waiting().items:
            return True
        age_s = self.clock() - answer.asked_at
        return answer.took_s <= GRACE_S and age_s > _STALE * answer.took_s

    def _accept_all(self) -> Iterator[PollResult]:
        """Accepts the available answers; yields them."""
        while True:
            try:
                answer = self.answers.get_nowait()
            except queue.Empty:
                return
            self.accept(answer)
            yield answer

    def poll_all(self, give_up: Callable[[], bool]) -> None:
        """Accepts from every source the result of a poll that began after this call.

        Raises:
            SourceUnavailableError: waiting was given up while a source could not be read.
            JetError: an error of `accept`.
        """
        late = set(self._asked_at)
        self.ask()
        while self._asked_at:
            try:
                answer = self.answers.get(timeout=_LOOK_S)
            except queue.Empty:
                self._note_unanswered()
                if give_up():
                    raise self._given_up() from None
                continue
            self.accept(answer)
            if answer.source in late:
                late.discard(answer.source)
                self.ask()

    def _note_unanswered(self) -> None:
        for name, asked_at in self._asked_at.items():
            silent_s = self.clock() - asked_at
            limit_s = max(UNANSWERED_S, _LONGER * max(self._took_s[name]))
            if silent_s >= limit_s and name not in self.outages:
                reason = f"the source {name!r} has not answered for {silent_s:.0f} s."
                self._note(Outage(name, self.now_ms() - round(silent_s * 1000), reason), True)

    def _end_outage(self, name: str) -> None:
        over = self.outages.pop(name, None)
        if over is not None:
            self.retried(name, None)
            if name in self._reported:
                self._reported.discard(name)
                self.report(over, True)

    def _note(self, outage: Outage, lasts: bool) -> None:
        name = outage.source
        self.outages[name] = outage
        self.retried(name, outage.reason)
        if lasts and name not in self._reported:
            self._reported.add(name)
            self.report(outage, False)

    def poll_last(self, give_up: Callable[[], bool]) -> None:
        """Ends the input with what is available now, like `poll_all`. The unread rest is in
        `backlogs`; later polls read only this rest."""
        for reader in self.readers.values():
            reader.mark_backlog()
        self.poll_all(give_up)
        self._has_ended = True

    def backlogs(self) -> dict[str, Backlog]:
        """Returns the backlogs of sources that have unread input from before its end."""
        if not self._has_ended:
            return {}
        left = {name: reader.backlog() for name, reader in self.readers.items()}
        return {name: backlog for name, backlog in left.items() if backlog is not Backlog.READ}

    def _read_on(self) -> Set[str]:
        """Returns the sources that are still polled."""
        return self.backlogs().keys() if self._has_ended else self.readers.keys()

    def acknowledge(
        self, name: str, messages: Mapping[str, Any], give_up: Callable[[], bool]
    ) -> bool | None:
        """Acknowledges messages on the source's thread and waits for it. Any thread.

        Args:
            give_up: whether to stop waiting for a source whose poll does not return.

        Returns:
            The reader's answer.

        Raises:
            Exception: the reader's error.
            SourceUnavailableError: the execution has ended first.
        """
        made = self.threads[name].do(partial(self.readers[name].acknowledge, messages))
        while not wait([made], _LOOK_S).done:
            # Once the acknowledgement has begun, the source has answered: `cancel` is False.
            if self._closing.is_set() or (name in self.outages and give_up() and made.cancel()):
                raise SourceUnavailableError(
                    "the execution ends before the messages are acknowledged.",
                    job=self.job,
                    stage=name,
                )
        return made.result()

    def close(self) -> None:
        """Closes every reader on its own thread. Does not wait for a reader that hangs."""
        self._closing.set()
        for thread in self.threads.values():
            thread.close()
        until = time.monotonic() + _END_S
        for name, thread in self.threads.items():
            if not thread.join(max(0.0, until - time.monotonic())):
                _logger.warning(
                    "%s: the source %s is still in a call, so its reader is not closed",
                    self.job,
                    name,
                )

    def _given_up(self) -> JetError:
        waited_for = sorted(self._asked_at)
        reasons = [self.outages[name].reason for name in waited_for if name in self.outages]
        return SourceUnavailableError(
            f"the execution ends before all sources have answered: {'; '.join(reasons)}",
            job=self.job,
            stage=", ".join(waited_for),
        )

    # --- on a source's thread -------------------------------------------------------------------

    def _poll(self, name: str) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        reader, began = self.readers[name], time.monotonic()
        while not self._closing.is_set():
            asked_at = self.clock()
            try:
                found = reader.poll()
                answer = PollResult(name, found, None, asked_at, self.clock() - asked_at)
            except Exception as error:  # noqa: BLE001 - the connector decides the reaction
                reaction = reaction_to(error, reader)
                if reaction is Reaction.RETRY:
                    since_ms = self.outages[name].since_ms if name in self.outages else None
                    outage = Outage(name, since_ms or self.now_ms(), str(error))
                    self._note(outage, time.monotonic() - began >= REPORT_AFTER_S)
                    self._closing.wait(backoff.next_s())
                    continue
                answer = PollResult(name, error=self._named(error, reaction, name))
            except BaseException as error:  # noqa: BLE001 - a panic in Rust ends the execution
                answer = PollResult(name, error=error)
            self.answers.put(answer)
            return

    def _named(self, error: Exception, reaction: Reaction | None, name: str) -> Exception:
        if reaction is None or isinstance(error, JetError):
            return error
        what = f"the poll raised {type(error).__name__}: {error}."
        kind = FencedError if reaction is Reaction.STOP else SourceError
        named = kind(what, job=self.job, stage=name)
        named.reaction = reaction
        named.__cause__ = error
        return named


def poll_now(reader: SourceReader) -> Lag:
    """Polls once on this thread; returns the backlog."""
    reader.accept(reader.poll())
    return reader.waiting()
