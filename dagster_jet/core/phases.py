"""Phases of an epoch, and of its snapshot, for profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class Part(str, Enum):
    """The interval that a phase belongs to."""

    EPOCH = "epoch"
    """Consecutive phases: their sum is the time from one epoch's acks to the next one's."""
    ACTION = "action"
    """Phases within `Phase.ACTION`. Tasks run in parallel: these need not add up to it."""
    SNAPSHOT = "snapshot"
    """Phases of the snapshot that follows an epoch's acks, concurrent with the next epoch."""


class Phase(str, Enum):
    """Phase of an epoch or a snapshot. Unrelated to phase 1 and phase 2 of the protocol."""

    ASKING = "asking"
    """Polling the sources, if there was something to do."""
    PLANNING = "planning"
    """Planning the input of the epoch from the positions of the sources."""
    BUILDING = "building"
    """Building Spark's frames on the driver: nothing runs yet."""
    SHARING = "sharing"
    """On a cluster: materializing frames that several branches read."""
    ACTION = "action"
    """The epoch's Spark job, from its submission to the last ack."""
    CHECKING = "checking"
    """Processing the acks: counting, moving watermarks, returning to the loop."""
    PUBLISHING = "publishing"
    """Committing sinks below exactly-once, after every epoch."""
    WAITING = "waiting"
    """Waiting for the pending snapshot: only one epoch runs ahead of it."""
    IDLE = "idle"
    """There was nothing to do."""

    SPARK = "spark"
    """The action without the time reported by Python tasks: Spark plans and schedules, reads,
    parses, aggregates, exchanges, and moves rows between the JVM and Python."""
    STEP = "step"
    """A stage computes results from its rows and its state."""
    SAVING = "saving"
    """Saving a stage's state, as far as its task waited for it."""
    WRITING = "writing"
    """Staging a sink's rows."""

    STATE = "state"
    """Waiting for state that was still being saved after the tasks had ended."""
    MANIFEST = "manifest"
    RECORD = "record"
    """Writing the decision into the record."""
    COMMIT = "commit"
    """Phase 2 of all sinks, or of one."""
    NOTE = "note"
    """Noting in the record that all is committed."""

    @property
    def part(self) -> Part:
        """The interval that the phase belongs to."""
        if self in (Phase.SPARK, Phase.STEP, Phase.SAVING, Phase.WRITING):
            return Part.ACTION
        if self in (Phase.STATE, Phase.MANIFEST, Phase.RECORD, Phase.COMMIT, Phase.NOTE):
            return Part.SNAPSHOT
        return Part.EPOCH


@dataclass(frozen=True)
class PhaseTime:
    """Duration of one phase of an epoch or a snapshot."""

    phase: Phase
    ms: float
    stage: str = ""
    """The stage or sink; empty: the whole job."""


@dataclass
class PhaseClock:
    """Divides elapsed time into consecutive phases.

    Args:
        seconds: a monotonic clock.
    """

    seconds: Callable[[], float]
    ms: dict[Phase, float] = field(default_factory=dict)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._at = self.seconds()

    def end(self, phase: Phase) -> None:
        """Book the time since the last call, or since the start, to this phase."""
        now = self.seconds()
        self.ms[phase] = self.ms.get(phase, 0.0) + (now - self._at) * 1000
        self._at = now

    def times(self) -> tuple[PhaseTime, ...]:
        return tuple(PhaseTime(phase, ms) for phase, ms in self.ms.items())
