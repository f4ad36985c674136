"""Is a job well? Verdicts over what the store says of it; no Dagster, nothing is asked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dagster_jet.snapshot.manifest import Counters
from dagster_jet.snapshot.record import Doing, ExecutionRecord, JobStatus
from dagster_jet.store.upkeep.status import StoreStatus


@dataclass(frozen=True)
class Limits:
    """What is still well."""

    snapshot_age_ms: int
    watermark_lag_ms: int | None
    """None: any. Event time may be long ago on purpose."""
    late_ratio: float
    rejected_ratio: float


@dataclass(frozen=True)
class Health:
    """One verdict, with the numbers behind it."""

    is_well: bool
    why: str
    numbers: Mapping[str, float | int] = field(default_factory=dict)


def snapshot_age(record: ExecutionRecord | None, now_ms: int, limits: Limits) -> Health:
    """A living job that waits for input makes no snapshots, and is well; so is one that is over."""
    if record is None or record.snapshot is None:
        return Health(False, "The job has no snapshot yet.")
    age_ms = max(0, now_ms - record.snapshot.taken_at_ms)
    numbers = {"snapshot_id": record.snapshot.snapshot_id, "age_seconds": age_ms / 1000}
    said = f"The last snapshot is {age_ms / 1000:,.0f} s old"
    if record.status is JobStatus.COMPLETED:
        return Health(True, f"{said}; the job is completed.", numbers)
    lease = record.lease
    is_idle = (
        lease is not None
        and lease.activity is not None
        and lease.activity.doing is Doing.IDLE
        and now_ms - lease.renewed_at_ms <= max(lease.ttl_ms, limits.snapshot_age_ms)
    )
    if is_idle:
        return Health(True, f"{said}; the job is alive and waits for input.", numbers)
    is_well = age_ms <= limits.snapshot_age_ms
    return Health(is_well, f"{said}; the job is {record.status.value}.", numbers)


def committed(record: ExecutionRecord | None, now_ms: int, limits: Limits) -> Health:
    """Whether the sinks have what the last snapshot has decided."""
    if record is None or record.snapshot is None:
        return Health(False, "The job has no snapshot yet.")
    newest = record.snapshot
    if newest.committed:
        return Health(True, f"Epoch {newest.epoch_id} is in all sinks.", {"epoch": newest.epoch_id})
    pending_ms = max(0, now_ms - newest.taken_at_ms)
    return Health(
        pending_ms <= limits.snapshot_age_ms,
        f"Epoch {newest.epoch_id} is decided since {pending_ms / 1000:,.0f} s, and not known to be "
        "in all sinks: `dagster-jet job` says what the job is at.",
        {"epoch": newest.epoch_id, "pending_seconds": pending_ms / 1000},
    )


def store_safe(status: StoreStatus) -> Health:
    """Whether the store could lose as many members as it was promised to."""
    away = [member for member in status.members if not member.reachable]
    said = [f"{m.member_id} does not answer: {(m.trouble or '').rstrip('.')}." for m in away]
    if status.under_replicated:
        said.append(f"{len(status.under_replicated)} partitions have too few copies.")
    said += status.notices
    numbers = {"members": len(status.members), "away": len(away)}
    if status.is_safe:
        return Health(True, " ".join(["All copies are there.", *said]), numbers)
    cure = "Bring it back, or run `dagster-jet store repair`."
    return Health(False, " ".join([*said, cure]), numbers)


def late_rows(counters: Counters | None, limits: Limits) -> Health:
    """Of all rows of a stage since the job began."""
    counters = counters or Counters()
    rows = counters.rows_in + counters.late
    ratio = counters.late / max(1, rows)
    is_well = ratio <= limits.late_ratio
    cure = "" if is_well else " A longer allowed_lag would take them in."
    said = f"{counters.late:,} of {rows:,} rows came too late ({ratio:.2%}).{cure}"
    return Health(is_well, said, {"late": counters.late, "ratio": ratio})


def rejected_rows(counters: Mapping[str, Counters], limits: Limits) -> Health:
    """Of all rows of all sources since the job began."""
    rejected = sum(each.rejected for each in counters.values())
    rows = sum(each.rows_in for each in counters.values()) + rejected
    ratio = rejected / max(1, rows)
    return Health(
        ratio <= limits.rejected_ratio,
        f"{rejected:,} of {rows:,} rows did not fit and are dead letters ({ratio:.2%}).",
        {"rejected": rejected, "ratio": ratio},
    )


def watermark_lag(
    reached_ms: int | None, held_back_by: str | None, now_ms: int, limits: Limits
) -> Health:
    """How far a stage's event time is behind the clock."""
    if reached_ms is None:
        return Health(True, "The stage has no event time yet.")
    lag_ms = now_ms - reached_ms
    is_well = limits.watermark_lag_ms is None or lag_ms <= limits.watermark_lag_ms
    held = f"; held back by {held_back_by}" if held_back_by else ""
    said = f"Event time is {lag_ms / 1000:,.0f} s behind the clock{held}."
    return Health(is_well, said, {"lag_seconds": lag_ms / 1000})
