"""What time goes to: the phases of an epoch, and of the snapshot that follows beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class Part(str, Enum):
    """Which whole a phase is a part of."""

    EPOCH = "epoch"
    """One after the other: together they are the time from one epoch's acks to the next one's."""
    ACTION = "action"
    """Within `Phase.ACTION`. Tasks run beside each other: these need not add up to it."""
    SNAPSHOT = "snapshot"
    """Of the snapshot behind an epoch's acks, beside the next epoch."""


class Phase(str, Enum):
    """What an epoch, or a snapshot, is at. Not phase 1 and phase 2, each of which has several."""

    ASKING = "asking"
    """The sources were asked, and there was something to do."""
    PLANNING = "planning"
    """What the epoch reads, from the positions of the sources."""
    BUILDING = "building"
    """Spark's frames, on the driver: nothing runs yet."""
    SHARING = "sharing"
    """On a cluster: frames that several branches read are made first."""
    ACTION = "action"
    """The epoch's Spark job, from its submission to the last ack."""
    CHECKING = "checking"
    """The acks: counted, watermarks moved, and handed to the loop."""
    PUBLISHING = "publishing"
    """Sinks below exactly-once commit after every epoch."""
    WAITING = "waiting"
    """For the pending snapshot: only one epoch runs ahead of it."""
    IDLE = "idle"
    """There was nothing to do."""

    SPARK = "spark"
    """The action without what its Python tasks report: Spark plans and schedules, reads, parses,
    aggregates, exchanges, and moves rows between the JVM and Python."""
    STEP = "step"
    """A stage: its rows and its state become results."""
    SAVING = "saving"
    """A stage's state, as far as its task waited for it."""
    WRITING = "writing"
    """A sink: its rows are staged."""

    STATE = "state"
    """Waiting for state that was still being saved when the tasks were over."""
    MANIFEST = "manifest"
    RECORD = "record"
    """The decision."""
    COMMIT = "commit"
    """Phase 2: all sinks, or one of them."""
    NOTE = "note"
    """In the record: all is committed."""

    @property
    def part(self) -> Part:
        """Which whole it is a part of."""
        if self in (Phase.SPARK, Phase.STEP, Phase.SAVING, Phase.WRITING):
            return Part.ACTION
        if self in (Phase.STATE, Phase.MANIFEST, Phase.RECORD, Phase.COMMIT, Phase.NOTE):
            return Part.SNAPSHOT
        return Part.EPOCH


@dataclass(frozen=True)
class PhaseTime:
    """How long one epoch, or one snapshot, was at something."""

    phase: Phase
    ms: float
    stage: str = ""
    """The stage or sink; empty: the phase is of the whole job."""


@dataclass
class PhaseClock:
    """Cuts a stretch of work into phases: one begins where the one before it ends.

    Args:
        seconds: a clock that goes on monotonically.
    """

    seconds: Callable[[], float]
    ms: dict[Phase, float] = field(default_factory=dict)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._at = self.seconds()

    def end(self, phase: Phase) -> None:
        """What has passed since the last call, or since the beginning, was this."""
        now = self.seconds()
        self.ms[phase] = self.ms.get(phase, 0.0) + (now - self._at) * 1000
        self._at = now

    def times(self) -> tuple[PhaseTime, ...]:
        return tuple(PhaseTime(phase, ms) for phase, ms in self.ms.items())
