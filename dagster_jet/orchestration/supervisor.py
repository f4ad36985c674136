"""Decides what the supervisor does about a job. Pure.

The decision is based on the lease, never on a run's status. Dagster's STARTED does not prove that a
process lives: it stays for ever after a hard kill. CANCELED does not prove that it is dead. The
status of the requested run only justifies more waiting.

A wrong verdict costs time, not rows: the record's ballot lets only one process decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from dagster_jet.errors import ConfigurationError
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease, StopCause


class Verdict(Enum):
    """Action of the supervisor at a tick."""

    ADOPT = "adopt"
    """An execution holds the job; leave it alone, whoever started it."""
    WAIT = "wait"
    """No execution holds the job, but no run is requested now."""
    START = "start"
    """The job has never run; request its first run."""
    RESTART = "restart"
    """The job is down without a request to stop; request another run."""
    GIVE_UP = "give up"
    """Too many runs in a row ended without progress; an operator must intervene."""
    STUCK = "stuck"
    """An execution holds the job but makes no progress; leave it alone and log an error."""
    DONE = "done"
    """The job is completed or was cancelled; nothing to supervise."""

    @property
    def requests_a_run(self) -> bool:
        return self in (Verdict.START, Verdict.RESTART)


class RunHint(Enum):
    """Dagster's status of the newest requested run."""

    ABSENT = "not known to Dagster"
    QUEUED = "waiting in Dagster's run queue"
    STARTING = "starting"
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True)
class RestartPolicy:
    """Time-outs and back-off of the supervisor, in milliseconds."""

    start_timeout_ms: int = 180_000
    """Time-out from the request of a run until the run holds the lease."""
    lost_request_ms: int = 75_000
    """Time-out for a reserved generation without a run in Dagster: the tick that reserved it is
    dead (Dagster ends a sensor tick after 60 s) and has sent no request."""
    backoff_initial_ms: int = 10_000
    backoff_max_ms: int = 300_000
    give_up_after: int = 8
    """Number of requests in a row without progress before the supervisor gives up."""
    healthy_ms: int = 60_000
    """Healthy running time since the request that counts as progress without a snapshot."""
    stuck_after_ms: int = 300_000
    takeover_ms: int = 20_000
    """Time-out for a standby from the loss of the owner, or its lease, until it has the job."""

    def backoff_ms(self, attempts: int) -> int:
        """Return the pause in ms after this number of requests in a row without progress."""
        if attempts <= 0:
            return 0
        return min(self.backoff_initial_ms << (attempts - 1), self.backoff_max_ms)


_LEAST = {"give_up_after": 1, "stuck_after_seconds": 0.1, "max_run_age_seconds": 0.1}
"""Smallest values of settings; 0 for the others."""


def check_settings(job: str, **settings: float | None) -> None:
    """Refuse settings of a supervisor, or of the checks beside it, that no job could satisfy.

    Args:
        job: the job's name, for errors.
        settings: by name, in seconds or a number of runs; None: not given.

    Raises:
        ConfigurationError: a setting is no number, or too small.
    """
    for name, value in settings.items():
        least = _LEAST.get(name, 0)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and value >= least):
            raise ConfigurationError(
                f"{name}: expected a number of at least {least}, not {value!r}.", job=job
            )


@dataclass(frozen=True)
class Situation:
    """Input of a decision.

    Durations are measured by the supervisor's own clock and observation, because the clocks of
    other hosts may be wrong by any amount.

    Attributes:
        record: the job's execution record.
        supervision: the newest request and the job's intent.
        waited_ms: time since the newest request was first seen, or its run outside of the queue.
        lease_unchanged_ms: time since the last observed renewal of the lease.
        owner_alive: whether the lease's process exists; None if unknown (another host).
        requested_run: Dagster's status of the newest requested run.
        launched: other unfinished runs of the job, none with the lease, and how long seen, in ms.
        standby: the run that stands by and is not known to be gone.
    """

    record: ExecutionRecord | None
    supervision: Supervision | None
    waited_ms: int = 0
    lease_unchanged_ms: int = 0
    owner_alive: bool | None = None
    requested_run: RunHint = RunHint.ABSENT
    launched: Mapping[str, int] = field(default_factory=dict)
    standby: str | None = None


@dataclass(frozen=True)
class Decision:
    """A verdict, its reason, and the number of attempts to write with a request."""

    verdict: Verdict
    reason: str
    attempts: int = 0
    names_failure: bool = False
    """The reason contains the failure of the record."""


def decide(situation: Situation, policy: RestartPolicy) -> Decision:
    """Return what to do about the job now: the first rule that applies decides.

    Args:
        situation: the observed state of the job.
        policy: time-outs and back-off.
    """
    return (
        _if_over(situation)
        or _if_held(situation, policy)
        or _if_unwanted(situation)
        or _if_awaited(situation, policy)
        or _request(situation, policy)
    )


def _if_over(situation: Situation) -> Decision | None:
    record = situation.record
    if record is not None and record.status is JobStatus.COMPLETED:
        return Decision(Verdict.DONE, "the job is COMPLETED")
    if record is None or record.cause is not StopCause.CANCEL:
        return None
    newest = record.snapshot
    if newest is None or newest.is_all_committed:
        return Decision(Verdict.DONE, "the job was cancelled")
    return Decision(
        Verdict.WAIT,
        f"the job was cancelled, and epoch {newest.epoch_id}, which is decided, is not "
        "known to be in all sinks: start the job once more, which commits it",
    )


def _if_held(situation: Situation, policy: RestartPolicy) -> Decision | None:
    record = situation.record
    if record is None or record.lease is None or not _is_held(record, situation):
        return None
    who = _who_holds(record, record.lease, situation)
    activity = record.lease.activity
    if activity is not None and activity.is_stuck(policy.stuck_after_ms):
        return Decision(Verdict.STUCK, f"{who}: {activity}")
    return Decision(Verdict.ADOPT, who)


def _if_unwanted(situation: Situation) -> Decision | None:
    record, supervision = situation.record, situation.supervision
    if supervision is not None and supervision.intent is not Intent.ALWAYS_ON:
        return Decision(Verdict.WAIT, _UNWANTED[supervision.intent])
    if record is None or record.status is not JobStatus.SUSPENDED:
        return None
    if supervision is not None and supervision.resumed_execution >= record.execution_id:
        return None
    why = record.failure or "on request"
    resume = f"'dagster-jet job {record.job} resume', or launch it by hand"
    reason = f"the job is SUSPENDED ({why}); {resume}"
    return Decision(Verdict.WAIT, reason, names_failure=True)


def _if_awaited(situation: Situation, policy: RestartPolicy) -> Decision | None:
    reason = (
        _wait_for_requested_run(situation, policy)
        or _wait_for_launched_run(situation, policy)
        or _wait_for_standby(situation, policy)
    )
    return None if reason is None else Decision(Verdict.WAIT, reason)


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
    """Return why to keep waiting for the requested run; None if it is not waited for."""
    asked = situation.supervision
    if asked is None or asked.generation == 0:
        return None
    execution_id = situation.record.execution_id if situation.record else 0
    if execution_id > asked.execution_id_seen:
        return None  # it was taken up, and that execution is dead
    if situation.requested_run is RunHint.ENDED:
        return None
    if situation.requested_run is RunHint.QUEUED:
        # Another request would wait behind it, and would count as an attempt without progress.
        return (
            f"run {asked.run_key} is {RunHint.QUEUED.value}; if it stays there, see "
            "'dagster-jet doctor'"
        )
    absent = situation.requested_run is RunHint.ABSENT
    limit_ms = policy.lost_request_ms if absent else policy.start_timeout_ms
    if situation.waited_ms >= limit_ms:
        return None
    return (
        f"run {asked.run_key} was requested {situation.waited_ms / 1000:.0f} s ago and is "
        f"{situation.requested_run.value}"
    )


def _wait_for_launched_run(situation: Situation, policy: RestartPolicy) -> str | None:
    """Return why to wait for a launched run that may take the job; None if there is none.

    A run killed hard stays "started" for ever, so it is waited for only as long as a start takes.
    """
    young = {run: ms for run, ms in situation.launched.items() if ms < policy.start_timeout_ms}
    if not young:
        return None
    run = min(young, key=lambda run: young[run])
    return f"run {run} was launched and may take the job; seen for {young[run] / 1000:.0f} s"


def _wait_for_standby(situation: Situation, policy: RestartPolicy) -> str | None:
    """Return why to wait for the standby to take the job over; None if it is not waited for."""
    record = situation.record
    if situation.standby is None or record is None or record.cause is StopCause.GAVE_UP:
        return None
    if not record.status.is_live and record.status is not JobStatus.NOT_RUNNING:
        return None
    ttl_ms = 0 if record.lease is None else record.lease.ttl_ms
    if situation.lease_unchanged_ms >= ttl_ms + policy.takeover_ms:
        return None
    return f"{_why_down(record, situation)}; run {situation.standby}, which stands by, takes over"


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
            names_failure=record is not None and not record.status.is_live,
        )
    verdict = Verdict.START if record is None else Verdict.RESTART
    return Decision(verdict, cause, attempts=attempts + 1)


def _got_on(record: ExecutionRecord | None, asked: Supervision, policy: RestartPolicy) -> bool:
    """Whether the job made progress since the request; without input there are no snapshots."""
    if record is None:
        return False
    newest = record.snapshot.snapshot_id if record.snapshot else 0
    snapshot_id_seen, healthy_ms_seen = asked.snapshot_id_seen, asked.healthy_ms_seen
    if record.first_execution_id > asked.execution_id_seen:  # reset: both count from 0 again
        snapshot_id_seen = healthy_ms_seen = 0
    healthy_ms = record.healthy_ms - healthy_ms_seen
    return newest > snapshot_id_seen or healthy_ms >= policy.healthy_ms


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
