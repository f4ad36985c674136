"""Calls to outside systems that have to succeed: retried, never skipped.

Of phase 2 the record says that what they do will be true; without those of a start there is none.
So a call that cannot succeed now is made again, with growing pauses, until it does or the execution
ends; the next start makes it then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.connectors.contract import reaction_to
from dagster_jet.errors import FencedError, JetError, Reaction, SinkError
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.store_reactions import StoreCall, StoreReaction, reaction_of
from dagster_jet.system.backoff import Backoff

_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 5.0
_LAST_PATIENCE_S = 10.0
"""So long a commit of what is decided is tried after a cancel, or a failure that no execution
follows: nobody starts the job to do it."""
_ENDS_AT_ONCE = (StopKind.CANCEL, StopKind.SHUTDOWN)
"""Every other kind of stop means that the output is committed."""


class GivenUpError(SinkError):
    """The execution ends before the call has succeeded."""


@dataclass(frozen=True)
class Attempted:
    """A call, for people and for errors."""

    what: str
    """Its noun: "commit"."""
    stage: str
    place: str
    connector: object
    """Whoever knows the errors of its client library (`ClassifiesErrors`)."""
    store_call: StoreCall
    """What it is to the job's own store, where it asks that."""
    is_decided: bool = False
    """It makes true what a record names."""


@dataclass
class Retrying:
    """Of one execution. Any thread."""

    job: str
    fenced: threading.Event
    stop: StopSignal
    report: Callable[[str], None]
    """Of a call that is being retried."""
    is_failing: Callable[[], bool] = lambda: False
    """Whether the execution ends of a failure once the commits that are under way are made."""
    ending: threading.Event = field(default_factory=threading.Event)
    """Set: the waiting between two tries ends."""
    troubles: dict[str, str] = field(default_factory=dict)
    """By stage whose call is being retried, why."""

    def until_done(
        self, call: Callable[[], object], of: Attempted, has_failed: Callable[[], bool]
    ) -> None:
        """
        Args:
            has_failed: another call has, without which this one is of no use.

        Raises:
            GivenUpError: the next start makes the call.
            FencedError: that is another execution's to do.
            JetError: what is not to be retried.
        """
        try:
            self._until_done(call, of, has_failed)
        finally:
            self.troubles.pop(of.stage, None)

    def _until_done(
        self, call: Callable[[], object], of: Attempted, has_failed: Callable[[], bool]
    ) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        last_since: float | None = None
        while True:
            try:
                call()
                return
            except Exception as error:  # noqa: BLE001 - the connector says what it means
                named = error if isinstance(error, JetError) else self._named(error, of)
                if not self._is_retried(named, of.store_call):
                    raise named from (error if named is not error else error.__cause__)
                self.troubles[of.stage] = str(error)
                self.report(f"{of.stage} ({of.place}): {of.what} is being retried: {error}")
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

    @staticmethod
    def _is_retried(error: JetError, call: StoreCall) -> bool:
        if error.reaction is Reaction.RETRY:
            return True
        return reaction_of(call, error) is StoreReaction.RETRY

    def ask(self, stage: str, connector: object, call: Callable[[], Any]) -> Any:
        """What the call returns, once its place can be looked at. `contract.Ask` of a start.

        Raises as `until_done`.
        """
        answers: list[Any] = []
        kind = type(connector).__name__
        self.until_done(
            lambda: answers.append(call()),
            Attempted("check", stage, kind, connector, StoreCall.START),
            lambda: False,
        )
        return answers[0]

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
        """An error of a client library, with the reaction that its connector knows."""
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
