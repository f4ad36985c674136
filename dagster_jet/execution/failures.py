"""Translates exceptions beside the loop to events of the protocol."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dagster_jet.connectors.pages import lead_to_page
from dagster_jet.errors import ExecutorLostError, FencedError, JetError, Reaction
from dagster_jet.execution.retrying import GivenUpError
from dagster_jet.snapshot.protocol import Failed, Purpose, RecordAnswer, WriteOutcome
from dagster_jet.snapshot.store_reactions import StoreCall, StoreReaction, reaction_of
from dagster_jet.spark.errors import is_of_gateway, translate
from dagster_jet.system.failpoint import FailPointError
from dagster_jet.system.transient import DENIED, TRANSIENT

_logger = logging.getLogger(__name__)


class Failures:
    """Failures of one execution. Thread-safe."""

    def __init__(self, job: str, pages: Mapping[str, str] | None = None) -> None:
        """`pages`: documentation pages with more about errors, by source or sink."""
        self._job, self._pages = job, pages or {}
        self.last: JetError | None = None
        """The error that caused the stop."""

    def expected(self, error: Exception) -> JetError:
        """The error, or one that stands for an unforeseen one. The last one counts as the cause of
        the end, but a call that was given up only follows from an earlier one."""
        named = expected(error, self._job)
        lead_to_page(named, self._pages)
        if self.last is None or not isinstance(named, GivenUpError):
            self.last = named
        return named

    def event(self, error: Exception) -> Failed | RecordAnswer:
        """Returns the coordinator's event for an error. A fenced execution has lost the record,
        wherever the error was raised."""
        named = self.expected(error)
        if isinstance(named, FencedError):
            return RecordAnswer(Purpose.LEASE, WriteOutcome.FENCED, 0)
        return Failed(str(named), may_pass(named, StoreCall.START))


def may_pass(error: JetError, call: StoreCall) -> bool:
    """Returns whether another execution follows one that this error has ended.

    Args:
        error: the error that ended the execution.
        call: the call to the store, if the error is the store's. A member that cannot be written is
            a mistake when a store is opened; later it means a full disk, which may get space again.
    """
    if error.reaction in (Reaction.RESTART, Reaction.RETRY):
        return True
    return reaction_of(call, error) is StoreReaction.RESTART


def expected(error: Exception, job: str) -> JetError:
    """Returns the error itself, or a `JetError` that stands for an unexpected one."""
    if isinstance(error, JetError):
        return error
    if isinstance(error, FailPointError):  # a failed call that may be repeated
        return ExecutorLostError(f"{error}.", job=job)
    if isinstance(error, OSError) and error.errno in TRANSIENT - DENIED:
        return ExecutorLostError(
            f"the driver could not read or write a file: {error}.",
            job=job,
            cure="Free disk space or bring the file system back. Meanwhile the job restarts from "
            "its last snapshot.",
        )
    if is_of_gateway(error):  # the first call after the JVM was killed
        return translate(error, job, ())
    _logger.error("the execution of %s failed", job, exc_info=error)
    cure = "If the exception is not from your own callback, please report it as a bug."
    return JetError(f"the driver raised {type(error).__name__}: {error}.", job=job, cure=cure)
