"""What to do about a job, from what is known about it: a pure function.

The lease decides, never a run's status: Dagster's STARTED is no proof of life (after a hard kill
it stays for ever) and its CANCELED no proof of death (the process may live on). The status of the
run that was asked for last is a hint to be patient, nothing more.

A wrong verdict costs time, not rows: whatever two processes believe, the execution record's
ballot lets one of them decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from dagster_jet.jobs.supervision import Intent, Supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, StopCause


class Verdict(Enum):
    """What the supervisor does at a tick."""

    ADOPT = "adopt"
    """Somebody drives the job: leave it alone, whoever started it."""
    WAIT = "wait"
    """Nobody drives it, and a new run is not the answer now."""
    START = "start"
    """It never ran: request the first run."""
    RESTART = "restart"
    """It ran and is down without having been asked to: request another run."""
    GIVE_UP = "give up"
    """Run after run has ended without progress; a person must look."""
    STUCK = "stuck"
    """Somebody drives the job and gets nowhere: leave it alone too, and say so loudly."""
    DONE = "done"
    """Its inputs are over, or it was cancelled: nothing to supervise."""

    @property
    def requests_a_run(self) -> bool:
        return self in (Verdict.START, Verdict.RESTART)


class RunHint(Enum):
    """What Dagster says about the run that was asked for last."""

    ABSENT = "not known to Dagster"
    PENDING = "queued or starting"
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True)
class RestartPolicy:
    """How patient the supervisor is. Times are milliseconds."""

    start_timeout_ms: int = 180_000
    """How long a requested run may take from the request to its lease."""
    lost_request_ms: int = 75_000
    """How long a reserved generation may have no run: the tick that reserved it is dead (a sensor
    tick is cut off after 60 s) and the request never left."""
    backoff_initial_ms: int = 10_000
    backoff_max_ms: int = 300_000
    give_up_after: int = 8
    """Requests in a row that brought no progress."""
    healthy_ms: int = 60_000
    """Progress without a snapshot: so long executions have got on since the request, in all."""
    stuck_after_ms: int = 300_000

    def backoff_ms(self, attempts: int) -> int:
        """Return the pause after so many requests in a row without progress."""
        if attempts <= 0:
            return 0
        return min(self.backoff_initial_ms << (attempts - 1), self.backoff_max_ms)


@dataclass(frozen=True)
class Situation:
    """All that a verdict depends on.

    Attributes:
        record: the job's execution record.
        supervision: what was asked for.
        waited_ms: how long the supervisor has seen the newest request. Like all times here by the
            supervisor's own clock, and of its own watching: clocks of others may be a year off.
        lease_unchanged_ms: how long it has seen the lease without a renewal.
        owner_alive: whether the lease's process exists; None where that cannot be known (another
            host).
        requested_run: Dagster's word on the newest request.
        launched: other runs of the job that have not ended, and how long each has been seen; none
            that has the lease.
    """

    record: ExecutionRecord | None
    supervision: Supervision | None
    waited_ms: int = 0
    lease_unchanged_ms: int = 0
    owner_alive: bool | None = None
    requested_run: RunHint = RunHint.ABSENT
    launched: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """A verdict, why, and the number of attempts to write with a request."""

    verdict: Verdict
    reason: str
    attempts: int = 0


def decide(situation: Situation, policy: RestartPolicy) -> Decision:
    """Return what to do about the job now.

    Args:
        situation: what is known.
        policy: how patient to be.
    """
    record, supervision = situation.record, situation.supervision
    is_resumed = (
        record is not None
        and supervision is not None
        and supervision.resumed_execution >= record.execution_id
    )
    if record is not None:
        if record.status is JobStatus.COMPLETED:
            return Decision(Verdict.DONE, "the job is COMPLETED")
        if record.cause is StopCause.CANCEL:
            newest = record.snapshot
            if newest is None or newest.committed:
                return Decision(Verdict.DONE, "the job was cancelled")
            return Decision(
                Verdict.WAIT,
                f"the job was cancelled, and epoch {newest.epoch_id}, which is decided, is not "
                "known to be in all sinks: start the job once more, which commits it",
            )
        if record.lease is not None and _is_held(record, situation):
            who = _who_holds(record, record.lease, situation)
            activity = record.lease.activity
            if activity is not None and activity.is_stuck(policy.stuck_after_ms):
                return Decision(Verdict.STUCK, f"{who}: {activity}")
            return Decision(Verdict.ADOPT, who)
    if supervision is not None and supervision.intent is not Intent.ALWAYS_ON:
        return Decision(Verdict.WAIT, _UNWANTED[supervision.intent])
    if record is not None and record.status is JobStatus.SUSPENDED and not is_resumed:
        why = record.failure or "on request"
        resume = f"'dagster-jet job {record.job} resume', or launch it by hand"
        return Decision(Verdict.WAIT, f"the job is SUSPENDED ({why}); {resume}")
    patience = _wait_for_requested_run(situation, policy)
    patience = patience or _wait_for_launched_run(situation, policy)
    if patience is not None:
        return Decision(Verdict.WAIT, patience)
    return _request(situation, policy)


_UNWANTED = {
    Intent.PAUSED: "paused on a person's request; resume the job, or launch it by hand, to go on",
    Intent.DRAINED: "its runs end by themselves; it is down until somebody, or a schedule, "
    "launches the next one",
}


def _is_held(record: ExecutionRecord, situation: Situation) -> bool:
    if not record.status.is_live or record.lease is None or situation.owner_alive is False:
        return False
    return situation.lease_unchanged_ms < record.lease.ttl_ms


def _who_holds(record: ExecutionRecord, lease: Lease, situation: Situation) -> str:
    run = f", run {lease.run_id}" if lease.run_id else ""
    text = (
        f"execution {record.execution_id} is {record.status.value} on {lease.host}, "
        f"process {lease.pid}{run}"
    )
    if situation.lease_unchanged_ms > lease.ttl_ms // 2:
        text += (
            f"; its lease was not renewed for {situation.lease_unchanged_ms / 1000:.0f} s of "
            f"{lease.ttl_ms / 1000:.0f} s"
        )
    return text


def _wait_for_requested_run(situation: Situation, policy: RestartPolicy) -> str | None:
    """Return why a run that was asked for deserves more time, None if it does not."""
    asked = situation.supervision
    if asked is None or asked.generation == 0:
        return None
    execution_id = situation.record.execution_id if situation.record else 0
    if execution_id > asked.execution_id_seen:
        return None  # it was taken up, and that execution is dead
    if situation.requested_run is RunHint.ENDED:
        return None
    absent = situation.requested_run is RunHint.ABSENT
    limit_ms = policy.lost_request_ms if absent else policy.start_timeout_ms
    if situation.waited_ms >= limit_ms:
        return None
    return (
        f"run {asked.run_key} was requested {situation.waited_ms / 1000:.0f} s ago and is "
        f"{situation.requested_run.value}"
    )


def _wait_for_launched_run(situation: Situation, policy: RestartPolicy) -> str | None:
    """Return which run may take the job at any moment, None if there is none.

    A run of which Dagster says for ever that it is started, because it was killed hard, is waited
    for only as long as a start may take.
    """
    young = {run: ms for run, ms in situation.launched.items() if ms < policy.start_timeout_ms}
    if not young:
        return None
    run = min(young, key=lambda run: young[run])
    return f"run {run} was launched and may take the job; seen for {young[run] / 1000:.0f} s"


def _request(situation: Situation, policy: RestartPolicy) -> Decision:
    record, asked = situation.record, situation.supervision
    if asked is None or asked.generation == 0:
        if record is None:
            return Decision(Verdict.START, "the job has never run", attempts=1)
        return Decision(Verdict.RESTART, _why_down(record, situation), attempts=1)
    attempts = 0 if _got_on(record, asked, policy) else asked.attempts
    cause = _why_down(record, situation) if record else "no run has taken the job up"
    if attempts >= policy.give_up_after:
        return Decision(
            Verdict.GIVE_UP,
            f"{attempts} runs in a row without progress ({cause}); "
            f"launch the job by hand once the cause is gone",
        )
    wait_ms = policy.backoff_ms(attempts) - situation.waited_ms
    if wait_ms > 0:
        return Decision(
            Verdict.WAIT,
            f"{cause}; attempt {attempts + 1} of {policy.give_up_after} in {wait_ms / 1000:.0f} s",
        )
    verdict = Verdict.START if record is None else Verdict.RESTART
    return Decision(verdict, cause, attempts=attempts + 1)


def _got_on(record: ExecutionRecord | None, asked: Supervision, policy: RestartPolicy) -> bool:
    """Has the job made progress since the request? A stream without input makes no snapshots."""
    if record is None:
        return False
    newest = record.snapshot.snapshot_id if record.snapshot else 0
    healthy_ms = record.healthy_ms - asked.healthy_ms_seen
    return newest > asked.snapshot_id_seen or healthy_ms >= policy.healthy_ms


def _why_down(record: ExecutionRecord, situation: Situation) -> str:
    execution = f"execution {record.execution_id}"
    if record.status.is_live and record.lease is not None:
        if situation.owner_alive is False:
            return f"{execution} is dead: process {record.lease.pid} is gone"
        return f"{execution} is presumed dead: no renewal for {record.lease.ttl_ms / 1000:.0f} s"
    if record.status is JobStatus.FAILED:
        return f"{execution} failed: {record.failure or 'no reason recorded'}"
    why = f": {record.failure}" if record.failure else ""
    return f"{execution} ended ({record.status.value}){why}"
