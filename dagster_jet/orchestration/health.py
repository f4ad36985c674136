"""Health verdicts on a job, computed from the store's data. Pure; independent of Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.orchestration.supervisor import RestartPolicy, Situation, Verdict, decide
from dagster_jet.ownership.supervision import Intent, Supervision
from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.record import Doing, ExecutionRecord, JobStatus, StopCause
from dagster_jet.store.upkeep.status import StoreStatus


@dataclass(frozen=True)
class Limits:
    """Limits below which a job counts as healthy."""

    snapshot_age_ms: int
    watermark_lag_ms: int | None
    """None: unlimited, because event time may be long ago on purpose."""
    late_ratio: float
    rejected_ratio: float
    stuck_after_ms: int = 300_000
    give_up_after: int = 8
    """`stuck_after_ms` and `give_up_after` are the same as for the supervisor."""
    drained_snapshot_age_ms: int | None = None
    """Limit on the age of the last snapshot of a job whose runs end by themselves; None: unlimited,
    because its schedule may start it at any interval."""


@dataclass(frozen=True)
class Health:
    """A verdict, its explanation and the numbers behind it."""

    is_well: bool
    why: str
    numbers: Mapping[str, float | int] = field(default_factory=dict)


_FAILURES = (StopCause.ERROR, StopCause.GAVE_UP)
_LONG_AGO_MS = 2**62
_FRUITLESS_MAX = 2
"""Executions in a row without a snapshot; a single one may have been killed by chance."""


def alive(
    record: ExecutionRecord | None,
    supervision: Supervision | None,
    now_ms: int,
    limits: Limits,
) -> Health:
    """Whether the job makes progress, or is down on purpose; explained in the supervisor's words.

    Args:
        record: record as observed: while it says that the job runs, its owner is alive.
        supervision: the newest request and the job's intent.
        now_ms: wall clock time in ms.
        limits: limits; a job may be down without a request for at most the maximum snapshot age.
    """
    situation = Situation(record, supervision, waited_ms=_LONG_AGO_MS)
    policy = RestartPolicy(stuck_after_ms=limits.stuck_after_ms, give_up_after=limits.give_up_after)
    decision = decide(situation, policy)
    why = f"{decision.reason[:1].upper()}{decision.reason[1:]}."
    if record is None:
        is_paused = supervision is not None and supervision.intent is Intent.PAUSED
        return Health(is_paused, why if is_paused else "The job has never run.")
    has_failed = record.cause in _FAILURES or record.status is JobStatus.FAILED
    if decision.verdict is Verdict.DONE:
        return Health(True, why)
    activity = record.lease.activity if record.lease is not None else None
    is_idle = activity is not None and activity.doing is Doing.IDLE
    if decision.verdict is Verdict.ADOPT and record.fruitless >= _FRUITLESS_MAX and not is_idle:
        return Health(
            False,
            f"{why[:-1]}, and it makes no progress: {record.fruitless} executions before it "
            "ended without being asked to, and decided no snapshot.",
            {"fruitless_executions": record.fruitless},
        )
    if decision.verdict is Verdict.ADOPT:
        return Health(True, f"{why[:-1]}: {activity}." if activity is not None else why)
    if decision.verdict is Verdict.STUCK:
        return Health(False, f"The job makes no progress: {decision.reason}.")
    if decision.verdict is Verdict.GIVE_UP:
        return Health(False, f"The supervisor has given up: {decision.reason}.")
    if decision.verdict is Verdict.WAIT:
        is_paused = supervision is not None and supervision.intent is Intent.PAUSED
        if is_paused or not has_failed:
            return Health(True, why)
        if decision.names_failure:
            return Health(False, why)
        cause = record.failure or "no reason recorded"
        return Health(False, f"Its last run failed: {cause}. {why}")
    down_ms = max(0, now_ms - record.updated_at_ms)
    numbers = {"down_seconds": down_ms / 1000}
    if has_failed:
        return Health(False, why, numbers)
    return Health(
        down_ms <= limits.snapshot_age_ms,
        f"{why} No run has started it for {down_ms / 1000:,.0f} s: check that its supervisor is "
        "on and the daemon is alive."
        if down_ms > limits.snapshot_age_ms
        else why,
        numbers,
    )


def definition(record: ExecutionRecord | None, loaded: str) -> Health:
    """Whether the running execution has the definition that is loaded here.

    Args:
        record: record as observed.
        loaded: digest of the definition (`Graph.definition`).
    """
    if record is None or not record.status.is_live:
        return Health(True, "No execution runs; the next one begins with this definition.")
    if record.definition in ("", loaded):
        return Health(True, f"Execution {record.execution_id} runs this definition.")
    return Health(
        False,
        f"Execution {record.execution_id} runs an older definition of the pipeline than the one "
        "that is loaded here. Shut the run down (control job, or 'dagster-jet job "
        f"{record.job} shutdown'): the next one runs this definition, from the last snapshot. "
        'With follow_definition="whole" the supervisor does so by itself.',
    )


def snapshot_age(
    record: ExecutionRecord | None,
    supervision: Supervision | None,
    now_ms: int,
    limits: Limits,
) -> Health:
    """Whether the last snapshot is recent, or the job is idle, completed or down on purpose."""
    intent = Intent.ALWAYS_ON if supervision is None else supervision.intent
    is_paused = intent is Intent.PAUSED and (record is None or not record.status.is_live)
    if record is None or record.snapshot is None:
        return Health(is_paused, "The job has no snapshot yet.")
    age_ms = max(0, now_ms - record.snapshot.taken_at_ms)
    numbers = {"snapshot_id": record.snapshot.snapshot_id, "age_seconds": age_ms / 1000}
    said = f"The last snapshot is {age_ms / 1000:,.0f} s old"
    if record.status is JobStatus.COMPLETED:
        return Health(True, f"{said}; the job is completed.", numbers)
    if is_paused:
        return Health(True, f"{said}; the job is paused.", numbers)
    if record.cause is StopCause.CANCEL:
        return Health(True, f"{said}; the job was cancelled.", numbers)
    lease = record.lease
    is_idle = (
        lease is not None
        and lease.activity is not None
        and lease.activity.doing is Doing.IDLE
        and now_ms - lease.renewed_at_ms <= max(lease.ttl_ms, limits.snapshot_age_ms)
    )
    if is_idle:
        return Health(True, f"{said}; the job is alive and waits for input.", numbers)
    limit_ms: int | None = limits.snapshot_age_ms
    if intent is Intent.DRAINED:
        limit_ms, said = limits.drained_snapshot_age_ms, f"{said}; its runs end by themselves"
    is_well = limit_ms is None or age_ms <= limit_ms
    return Health(is_well, f"{said}; the job is {record.status.value}.", numbers)


def committed(record: ExecutionRecord | None, now_ms: int, limits: Limits) -> Health:
    """Whether the sinks have the output that the last snapshot decided."""
    if record is None or record.snapshot is None:
        return Health(False, "The job has no snapshot yet.")
    newest = record.snapshot
    if newest.committed:
        but = ", but for rows that sinks hold back" if newest.holds else ""
        said = f"Epoch {newest.epoch_id} is in all sinks{but}."
        return Health(True, said, {"epoch": newest.epoch_id})
    pending_ms = max(0, now_ms - newest.taken_at_ms)
    return Health(
        pending_ms <= limits.snapshot_age_ms,
        f"Epoch {newest.epoch_id} was decided {pending_ms / 1000:,.0f} s ago, and is not known "
        "to be in all sinks: `dagster-jet job` shows what the job is doing.",
        {"epoch": newest.epoch_id, "pending_seconds": pending_ms / 1000},
    )


def store_safe(status: StoreStatus) -> Health:
    """Whether the store can lose as many members as its backup count promises."""
    away = [member for member in status.members if not member.reachable]
    said = [f"{m.member_id} does not answer: {(m.error or '').rstrip('.')}." for m in away]
    if status.under_replicated:
        said.append(f"{len(status.under_replicated)} partitions have too few copies.")
    said += status.notices
    damaged = sum(member.damaged for member in status.members)
    numbers = {"members": len(status.members), "away": len(away), "damaged_copies": damaged}
    if status.is_safe:
        return Health(True, " ".join(["All copies exist.", *said]), numbers)
    if away or status.under_replicated:
        said.append("Bring it back, or run `dagster-jet store repair`.")
    return Health(False, " ".join(said), numbers)


def late_rows(counters: Counters | None, limits: Limits) -> Health:
    """Whether few of a stage's rows were late since the job began."""
    counters = counters or Counters()
    rows = counters.rows_in + counters.late
    ratio = counters.late / max(1, rows)
    is_well = ratio <= limits.late_ratio
    cure = "" if is_well else " A longer allowed_lag would include them."
    said = f"{counters.late:,} of {rows:,} rows came too late ({ratio:.2%}).{cure}"
    return Health(is_well, said, {"late": counters.late, "ratio": ratio})


def rejected_rows(counters: Mapping[str, Counters], limits: Limits) -> Health:
    """Whether few of all sources' rows became dead letters since the job began."""
    rejected = sum(each.rejected for each in counters.values())
    rows = sum(each.rows_in for each in counters.values()) + rejected
    ratio = rejected / max(1, rows)
    return Health(
        ratio <= limits.rejected_ratio,
        f"{rejected:,} of {rows:,} rows did not fit the schema and are dead letters ({ratio:.2%}).",
        {"rejected": rejected, "ratio": ratio},
    )


def watermark_lag(
    reached_ms: int | None, held_back_by: str | None, now_ms: int, limits: Limits
) -> Health:
    """Whether the lag of a stage's event time behind the clock is within its limit."""
    if reached_ms is None:
        return Health(True, "The stage has no event time yet.")
    if reached_ms >= FINAL_WATERMARK_MS:
        return Health(True, "The stage's input is over.")
    lag_ms = now_ms - reached_ms
    is_well = limits.watermark_lag_ms is None or lag_ms <= limits.watermark_lag_ms
    held = f"; held back by {held_back_by}" if held_back_by else ""
    said = f"Event time is {lag_ms / 1000:,.0f} s behind the clock{held}."
    return Health(is_well, said, {"lag_seconds": lag_ms / 1000})
