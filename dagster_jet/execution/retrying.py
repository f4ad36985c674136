"""Retries calls to outside systems that must succeed.

The record promises the calls of phase 2, and a start cannot continue without its own. So a call
that cannot succeed now is repeated with growing pauses until it succeeds or the execution ends; the
next start then makes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.contract import ClassifiesErrors
from dagster_jet.errors import FencedError, JetError, Reaction, SinkError
from dagster_jet.execution.connector_errors import reaction_to
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.store_reactions import StoreCall, StoreReaction, reaction_of
from dagster_jet.system.backoff import Backoff

_logger = logging.getLogger(__name__)

UNANSWERED_S = 30.0
"""Seconds after which a call that has not returned is logged, once: a network may raise nothing."""
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_LAST_PATIENCE_S = 10.0
"""Longest retry of a decided commit after a cancel, or after a failure that no execution follows:
no other process would do it."""
_ENDS_AT_ONCE = (StopKind.CANCEL, StopKind.SHUTDOWN)
"""Stops after which retries end at once; every other kind waits until the output is committed."""


class GivenUpError(SinkError):
    """The execution ends before the call has succeeded."""


@dataclass(frozen=True)
class Attempted:
    """Describes a call, for logs and errors."""

    what: str
    """Noun of the call: "commit"."""
    stages: tuple[str, ...]
    place: str
    connector: ClassifiesErrors
    """Connector that classifies the errors of its client library."""
    store_call: StoreCall
    """Kind of the call, if it goes to the job's own store."""
    is_decided: bool = False
    """Whether the call carries out what a record has decided."""

    @property
    def stage(self) -> str:
        return ", ".join(self.stages)


@dataclass
class Retrying:
    """Retries the calls of one execution. Thread-safe."""

    job: str
    fenced: threading.Event
    stop: StopSignal
    report: Callable[[str], None]
    """Reports a call that is being retried."""
    is_failing: Callable[[], bool] = lambda: False
    """Whether the execution will fail once the running commits have ended."""
    ending: threading.Event = field(default_factory=threading.Event)
    """Ends the pause between two tries once set."""
    errors: dict[str, str] = field(default_factory=dict)
    """Reason of the retries, by stage."""

    def until_done(
        self, call: Callable[[], Any], of: Attempted, has_failed: Callable[[], bool]
    ) -> Any:
        """Returns the call's result.

        Args:
            has_failed: whether another call has failed that this one depends on.

        Raises:
            GivenUpError: the next start makes the call.
            FencedError: another execution has to make the call.
            JetError: the error is not retryable.
        """
        try:
            return self._until_done(call, of, has_failed)
        finally:
            for stage in of.stages:
                self.errors.pop(stage, None)

    def _until_done(
        self, call: Callable[[], Any], of: Attempted, has_failed: Callable[[], bool]
    ) -> Any:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        last_since: float | None = None
        while True:
            slow = threading.Timer(UNANSWERED_S, self._log_unanswered, (of,))
            slow.daemon = True
            slow.start()
            try:
                return call()
            except Exception as error:  # noqa: BLE001 - the connector classifies it
                named = error if isinstance(error, JetError) else self._named(error, of)
                if not self._is_retried(named, of.store_call):
                    raise named from (error if named is not error else error.__cause__)
                self.errors.update(dict.fromkeys(of.stages, str(error)))
                self.report(f"{of.stage} ({of.place}): {of.what} is being retried: {error}")
            finally:
                slow.cancel()
            if self.fenced.is_set():
                raise FencedError("a newer execution owns the job.", job=self.job)
            if self.ending.wait(backoff.next_s()) or has_failed():
                raise self._given_up(of)
            is_last = self.stop.kind is StopKind.CANCEL or self.is_failing()
            if is_last and of.is_decided:
                last_since = last_since or time.monotonic()
                if time.monotonic() - last_since >= _LAST_PATIENCE_S:
                    raise self._given_up(of)
            elif self.ends_at_once():
                raise self._given_up(of)

    def _log_unanswered(self, of: Attempted) -> None:
        _logger.warning(
            "job %r: %s (%s): the %s has not returned for %g s",
            self.job,
            of.stage,
            of.place,
            of.what,
            UNANSWERED_S,
        )

    @staticmethod
    def _is_retried(error: JetError, call: StoreCall) -> bool:
        if error.reaction is Reaction.RETRY:
            return True
        return reaction_of(call, error) is StoreReaction.RETRY

    def ask(self, stage: str, connector: ClassifiesErrors, call: Callable[[], Any]) -> Any:
        """Returns the call's result once its place can be read. `Ask` of a start.

        Raises the errors of `until_done`.
        """
        kind = type(connector).__name__
        attempted = Attempted("check", (stage,), kind, connector, StoreCall.START)
        return self.until_done(call, attempted, lambda: False)

    def ends_at_once(self) -> bool:
        return self.stop.kind in _ENDS_AT_ONCE

    def _given_up(self, of: Attempted) -> GivenUpError:
        given_up = GivenUpError(
            f"the execution ends before its {of.what} to {of.place} succeeded.",
            job=self.job,
            stage=of.stage,
            cure="Nothing is lost: the next start tries it again.",
        )
        if self.stop.kind is StopKind.CANCEL:
            given_up.reaction = Reaction.FAIL
        return given_up

    def _named(self, error: Exception, of: Attempted) -> JetError:
        """Returns a client library's error as a `JetError` with the connector's reaction."""
        reaction = reaction_to(error, of.connector) or Reaction.RESTART
        what = f"the {of.what} raised {type(error).__name__}: {error}."
        if reaction is Reaction.STOP:
            return FencedError(what, job=self.job, stage=of.stage)
        cure = f"Nothing is lost: the job restarts and tries the {of.what} again."
        if reaction is Reaction.FAIL:
            cure = f"Nothing is lost: remove the cause and start again to retry the {of.what}."
        named = SinkError(what, job=self.job, stage=of.stage, cure=cure)
        named.reaction = reaction
        return named
