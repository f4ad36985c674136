"""Decides whether the supervisor requests a standby beside the run that has a job. Pure.

Runs that stand by are no attempts at the job itself: they have a number, a back-off and a history
of their own, and the supervisor's verdict on the job does not look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_jet.orchestration.supervisor import RestartPolicy, RunHint
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

_LASTS_MS = 120_000
"""Shortest duration of a standby's run that counts as healthy."""


@dataclass(frozen=True)
class StandbyRun:
    """An unfinished run that stands by, or is about to.

    Attributes:
        run_id: Dagster's id.
        waits: its Spark is warm, and it watches the job.
        definition: digest of the pipeline's definition that its process has loaded; "": not known.
        is_gone: its process provably does not exist any more.
        is_requested: a supervisor has requested it, not a person.
        seen_ms: how long the supervisor has seen the run.
    """

    run_id: str
    waits: bool = False
    definition: str = ""
    is_gone: bool = False
    is_requested: bool = False
    seen_ms: int = 0


@dataclass(frozen=True)
class StandbySituation:
    """Input of a decision.

    Attributes:
        record: record of the execution that has the job.
        supervision: the newest requests and the job's intent.
        runs: runs that have left the queue and stand by, or are about to, whoever launched them.
        requested_run: Dagster's status of the newest run that was requested to stand by.
        requested_id: its id; None if Dagster does not know it.
        waited_ms: time since that request was first seen, or its run outside of the queue.
        lasted_ms: how long that run lasted; None if it has not ended.
        definition: digest of the definition that the supervisor has loaded; "": not known.
    """

    record: ExecutionRecord
    supervision: Supervision
    runs: Sequence[StandbyRun] = ()
    requested_run: RunHint = RunHint.ABSENT
    requested_id: str | None = None
    waited_ms: int = 0
    lasted_ms: int | None = None
    definition: str = ""


@dataclass(frozen=True)
class StandbyDecision:
    """A decision about a standby, with its text.

    Attributes:
        text: to append to the tick's text.
        attempts: number to write with a request; None: nothing is requested.
        replaces: ids of the runs that end in favour of the requested one.
        is_coming: a standby will soon wait, so a healthy run may put its end off.
    """

    text: str
    attempts: int | None = None
    replaces: tuple[str, ...] = ()
    is_coming: bool = False


def decide_standby(situation: StandbySituation, policy: RestartPolicy) -> StandbyDecision:
    """Return what to do about a standby of a job that an execution has.

    Args:
        situation: the observed state.
        policy: time-outs and back-off.
    """
    record, asked = situation.record, situation.supervision
    if asked.intent is not Intent.ALWAYS_ON or record.status is JobStatus.COMPLETING:
        return StandbyDecision("")
    outdated = tuple(run.run_id for run in situation.runs if _is_outdated(run, situation))
    current = [run for run in situation.runs if not run.is_gone and run.run_id not in outdated]
    for run in current:
        if run.waits:
            return StandbyDecision(f"; run {run.run_id} stands by")
    coming = _on_its_way(situation, current, policy)
    if coming is not None:
        # A full queue does not keep a run from its end for ever.
        is_soon = situation.waited_ms < policy.start_timeout_ms
        return StandbyDecision(coming, is_coming=bool(current) or is_soon)
    if record.status is not JobStatus.RUNNING or record.fruitless_now:
        # Otherwise a job that dies at each start would do so without a back-off.
        return StandbyDecision("; a standby follows once the execution has decided a snapshot")
    attempts = 0 if _was_well(situation) else asked.standby_attempts
    pause_ms = policy.backoff_ms(attempts) - situation.waited_ms
    if pause_ms > 0:
        return StandbyDecision(
            f"; nothing stands by: {attempts} in a row soon ended, the next one follows "
            f"in {pause_ms / 1000:.0f} s"
        )
    instead = (
        f" in place of run {', '.join(outdated)}, whose definition is older" if outdated else ""
    )
    return StandbyDecision(f"; a standby is requested{instead}", attempts + 1, outdated, True)


def _is_outdated(run: StandbyRun, situation: StandbySituation) -> bool:
    """Whether another definition is loaded now than the run has.

    A run that was requested for the loaded definition stays, whatever its process has loaded: the
    next one would have that, too.
    """
    if "" in (run.definition, situation.definition) or run.definition == situation.definition:
        return False
    was_requested_for_it = situation.supervision.standby_definition == situation.definition
    return not (was_requested_for_it and run.run_id == situation.requested_id)


def _on_its_way(
    situation: StandbySituation, current: Sequence[StandbyRun], policy: RestartPolicy
) -> str | None:
    """Return what is said of a standby that will soon wait; None if there is none."""
    asked = situation.supervision
    for run in current:
        if run.seen_ms < policy.start_timeout_ms:
            return f"; run {run.run_id} is about to stand by"
    if asked.standby == 0:
        return None
    if situation.requested_run is RunHint.QUEUED:
        return f"; run {asked.standby_run_key}, a standby, is {RunHint.QUEUED.value}"
    is_late = situation.waited_ms >= policy.lost_request_ms
    if situation.requested_run is RunHint.ABSENT and not is_late:
        return f"; run {asked.standby_run_key} was requested to stand by"
    return None


def _was_well(situation: StandbySituation) -> bool:
    """Whether the last standby took the job over, or lasted; or another one is wanted now."""
    record, asked = situation.record, situation.supervision
    if asked.standby_definition != situation.definition:
        return True
    owner = record.lease.run_id if record.lease is not None else None
    if situation.requested_id is not None and situation.requested_id == owner:
        return True
    return situation.lasted_ms is not None and situation.lasted_ms >= _LASTS_MS
