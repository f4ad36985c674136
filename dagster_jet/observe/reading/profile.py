"""A job's profile: the time of its last epochs by phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dagster_jet.core.phases import Part, Phase
from dagster_jet.errors import JobStateError
from dagster_jet.observe.writing.profile_keeper import read_timings
from dagster_jet.observe.writing.recent_timings import Key, RecentTimings, Timing
from dagster_jet.store import Store

_SHOWN_MS = 0.05
"""Phases that never took longer are not shown."""


@dataclass(frozen=True)
class PhaseProfile:
    """One phase of a job's epochs, or of its snapshots.

    Times are in milliseconds, of one epoch (`Part.EPOCH`, `Part.ACTION`) or of one snapshot
    (`Part.SNAPSHOT`).
    """

    phase: Phase
    part: Part
    stage: str | None
    """The stage or sink; None: the phase covers the whole job."""
    share: float | None
    """Share of the epochs' time, from 0 to 1. Shares of `Part.EPOCH` add up to 1; those of
    `Part.ACTION` are parts of the action. None: beside the epochs, or idle."""
    p50_ms: float
    p95_ms: float
    max_ms: float
    total_ms: float

    @property
    def title(self) -> str:
        """Title for people."""
        stage = self.stage if self.stage is not None else "all sinks"
        return _TITLES[self.phase].format(stage=stage)


@dataclass(frozen=True)
class JobProfile:
    """Profile of a job's last epochs, as it is kept in the store."""

    job: str
    execution_id: int
    written_at_ms: int
    """Wall clock of the job's process; a running job writes it every few seconds."""
    first_epoch_ms: float | None
    """The execution's first epoch, without idling. It starts Python workers and the JVM compiles,
    so it is excluded below. None: it is included, as the only epoch so far."""
    epochs: int
    first_epoch_id: int
    last_epoch_id: int
    snapshots: int
    rows: int
    """Rows read from sources in these epochs."""
    busy_ms: float
    """Time from the first of these epochs to the last, without idle time."""
    idle_ms: float
    phases: tuple[PhaseProfile, ...]
    """In the order of an epoch."""

    @property
    def rows_per_second(self) -> float:
        """Rate without idle time."""
        return self.rows / self.busy_ms * 1000 if self.busy_ms > 0 else 0.0

    @property
    def largest(self) -> PhaseProfile | None:
        """The phase with the largest share; instead of the action, the largest phase inside it."""
        known = [p for p in self.phases if p.share is not None]
        inside = any(p.part is Part.ACTION for p in known)
        parts = [p for p in known if not (inside and p.phase is Phase.ACTION)]
        return max(parts, key=_total, default=None)

    @property
    def summary(self) -> str:
        """One sentence that names the largest phase."""
        largest = self.largest
        if largest is None:
            return "No epoch took any time."
        sentence = f"The largest part of an epoch is {largest.title}: {largest.share:.0%}"
        sentence += f" of the time, p50 {largest.p50_ms:,.1f} ms"
        steps = [p for p in self.phases if p.part is Part.SNAPSHOT and p.stage is None]
        if largest.phase is Phase.WAITING and steps:
            longest = max(steps, key=_total)
            sentence += f"; what takes a snapshot longest is {longest.title}"
            sentence += f", p50 {longest.p50_ms:,.1f} ms"
        return f"{sentence}."

    def to_json(self) -> dict[str, Any]:
        """For programs: plain values only."""
        document = asdict(self)
        largest = self.largest
        document["rows_per_second"] = round(self.rows_per_second, 1)
        document["largest"] = largest and {"phase": largest.phase.value, "stage": largest.stage}
        document["summary"] = self.summary
        document["phases"] = [
            {**asdict(p), "phase": p.phase.value, "part": p.part.value} for p in self.phases
        ]
        return document


def read_profile(store: Store, job: str) -> JobProfile:
    """Reads the profile that the newest execution of a job left in the store; in any process.

    Raises:
        JobStateError: no epoch was measured yet.
        StoreError: it cannot be read now.
    """
    found = read_timings(store, job)
    if found is None or found[1].first is None:
        raise JobStateError(
            "the job has no profile: no epoch has ended yet under this version.",
            job=job,
            cure="See 'dagster-jet jobs'. A running job saves its profile in the store after its "
            "first epoch, and then every few seconds.",
        )
    execution_id, timings, written_at_ms = found
    return profile_of(job, execution_id, timings, written_at_ms)


def profile_of(
    job: str, execution_id: int, timings: RecentTimings, written_at_ms: int
) -> JobProfile:
    """Summarises epochs and snapshots; there is at least one epoch."""
    assert timings.first is not None
    epochs, snapshots = list(timings.epochs) or [timings.first], list(timings.snapshots)
    idle_ms = sum(timing.ms.get((Phase.IDLE, ""), 0.0) for timing in epochs)
    busy_ms = sum(map(_busy_ms, epochs))
    phases = (*_phases(epochs, busy_ms), *_phases(snapshots, None))
    return JobProfile(
        job=job,
        execution_id=execution_id,
        written_at_ms=written_at_ms,
        first_epoch_ms=round(_busy_ms(timings.first), 1) if timings.epochs else None,
        epochs=len(epochs),
        first_epoch_id=epochs[0].number,
        last_epoch_id=epochs[-1].number,
        snapshots=len(snapshots),
        rows=sum(timing.rows for timing in epochs),
        busy_ms=round(busy_ms, 1),
        idle_ms=round(idle_ms, 1),
        phases=tuple(sorted(phases, key=_in_order)),
    )


def _busy_ms(epoch: Timing) -> float:
    outer = {phase: ms for (phase, _), ms in epoch.ms.items() if phase.part is Part.EPOCH}
    return sum(ms for phase, ms in outer.items() if phase is not Phase.IDLE)


def _phases(timings: Sequence[Timing], busy_ms: float | None) -> Iterator[PhaseProfile]:
    keys: dict[Key, None] = dict.fromkeys(key for timing in timings for key in timing.ms)
    for phase, stage in keys:
        times = sorted(timing.ms.get((phase, stage), 0.0) for timing in timings)
        if times[-1] < _SHOWN_MS:
            continue
        total_ms, has_share = sum(times), bool(busy_ms) and phase is not Phase.IDLE
        yield PhaseProfile(
            phase=phase,
            part=phase.part,
            stage=stage or None,
            share=round(total_ms / busy_ms, 4) if has_share and busy_ms else None,
            p50_ms=_percentile(times, 0.5),
            p95_ms=_percentile(times, 0.95),
            max_ms=round(times[-1], 1),
            total_ms=round(total_ms, 1),
        )


def _percentile(ascending: Sequence[float], part: float) -> float:
    """Percentile by nearest rank, so always a measured value."""
    return round(ascending[max(0, math.ceil(part * len(ascending)) - 1)], 1)


def _total(phase: PhaseProfile) -> float:
    return phase.total_ms


def _in_order(phase: PhaseProfile) -> tuple[int, str]:
    """Sort key: phases in an epoch's order, then stages by name."""
    return _ORDER.index(phase.phase), phase.stage or ""


_TITLES = {
    Phase.ASKING: "asking the sources",
    Phase.PLANNING: "planning the input",
    Phase.BUILDING: "building frames on the driver",
    Phase.SHARING: "making shared frames first",
    Phase.ACTION: "Spark's action",
    Phase.SPARK: "Spark itself (plans, reads, aggregates)",
    Phase.STEP: "the step of {stage}",
    Phase.SAVING: "saving the state of {stage}",
    Phase.WRITING: "writing to {stage}",
    Phase.CHECKING: "checking acks",
    Phase.PUBLISHING: "committing below exactly-once",
    Phase.WAITING: "waiting for the pending snapshot",
    Phase.IDLE: "idling",
    Phase.STATE: "the rest of the state",
    Phase.MANIFEST: "the manifest",
    Phase.RECORD: "the decision in the record",
    Phase.COMMIT: "committing to {stage}",
    Phase.NOTE: "noting it in the record",
}
_ORDER = list(_TITLES)
