"""Reactions of a job to failures of store members. They depend on the call, not on the error.

docs/guarantees.md promises and prints `REACTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError, WriteOutcomeUnknownError


class StoreCall(Enum):
    """Calls of a running job to its store, in words for people."""

    STAGING = "a sink stages rows there"
    NOTE = "an epoch notes what it reads"
    CHUNK = "state is saved"
    MANIFEST = "the manifest is written"
    RECORD = "the record is written"
    COMMIT = "phase 2 reads what is staged, and writes maps"
    GARBAGE = "what nobody needs any more is removed"
    START = "a start takes over notes and removes what dead executions have left"


class Condition(Enum):
    """State of a member that the call needs."""

    FULL = "full"
    AWAY = "away"
    READ_ONLY = "read-only"
    DAMAGED = "damaged"
    """A copy on the member is damaged. A member whose own structure is damaged counts as away."""
    SLOW = "slow"
    """It answers within the call's time limit. A later answer counts as away."""


class StoreReaction(Enum):
    """Reaction of the job, in words for people."""

    RESTART = "the job restarts"
    DISCARD = "the snapshot is discarded"
    RETRY = "retried in place"
    GO_ON = "the job goes on without it"
    OTHERS_DECIDE = "a majority is enough"
    OTHER_REPLICA = "another replica is read"
    WAIT = "waited for"


def _failing(call_failed: StoreReaction) -> dict[Condition, StoreReaction]:
    """Reactions for a call that every replica has to take."""
    return {
        Condition.FULL: call_failed,
        Condition.AWAY: call_failed,
        Condition.READ_ONLY: call_failed,
        Condition.DAMAGED: StoreReaction.OTHER_REPLICA,
        Condition.SLOW: StoreReaction.WAIT,
    }


REACTIONS: Mapping[StoreCall, Mapping[Condition, StoreReaction]] = {
    StoreCall.STAGING: _failing(StoreReaction.RESTART),
    StoreCall.NOTE: _failing(StoreReaction.GO_ON),
    StoreCall.CHUNK: _failing(StoreReaction.DISCARD),
    StoreCall.MANIFEST: _failing(StoreReaction.DISCARD),
    StoreCall.RECORD: dict.fromkeys(Condition, StoreReaction.OTHERS_DECIDE),
    StoreCall.COMMIT: _failing(StoreReaction.RETRY),
    StoreCall.GARBAGE: {
        **_failing(StoreReaction.GO_ON),
        Condition.DAMAGED: StoreReaction.GO_ON,  # removed unread
    },
    StoreCall.START: _failing(StoreReaction.RESTART),
}


def condition_of(error: BaseException) -> Condition | None:
    """The condition behind a store error; None: no member's condition.

    READ_ONLY is reported as FULL. SLOW beyond the time limit is reported as AWAY.
    """
    if isinstance(error, StoreUnwritableError):
        return Condition.FULL
    if isinstance(error, StoreUnavailableError | WriteOutcomeUnknownError):
        return Condition.AWAY
    return None


def reaction_of(call: StoreCall, error: BaseException) -> StoreReaction | None:
    """The reaction to an error of this call; None: the error's own reaction applies."""
    condition = condition_of(error)
    return None if condition is None else REACTIONS[call][condition]
