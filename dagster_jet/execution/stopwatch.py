"""Where an execution's time goes: in its epochs, between them, and in its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_jet.core.phases import Part, Phase
from dagster_jet.execution.events import EpochCompleted
from dagster_jet.execution.recent_laps import Lap, RecentLaps
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.protocol import Purpose, WriteOutcome


@dataclass
class EpochStopwatch:
    """On the loop's thread, which sees all that begins and ends.

    A lap goes from one epoch's acks to those of the next, so that laps leave no time out. The time
    from `protocol.RunEpoch` to the acks is what the epoch reports itself; what is missing there,
    on the way from thread to thread, is added to `Phase.CHECKING`.
    """

    laps: RecentLaps
    seconds: Callable[[], float]
    _doing: Phase | None = None
    """None: before the first look at the sources."""
    _since: float = 0.0
    _lap: Lap = field(default_factory=Lap)

    def looks(self) -> None:
        """The sources are being asked."""
        self._at(Phase.ASKING)

    def completed(self, event: EpochCompleted) -> None:
        """Heard before the acks of the same epoch."""
        for time in event.times:
            self._lap.add(time.phase, time.ms, time.stage)
            if time.phase.part is Part.EPOCH:
                self._lap.add(Phase.CHECKING, -time.ms)  # it is within what is measured here
        self._lap.rows = event.rows

    def heard(self, event: protocol.Event, commands: Sequence[protocol.Command]) -> None:
        """The coordinator has taken an event, and then wanted `commands`."""
        match event:
            case protocol.EpochAcked(epoch_id=epoch_id):
                self._at(Phase.WAITING)
                self._lap.number = epoch_id
                self.laps.add_epoch(self._lap)
                self._lap = Lap()
            case protocol.Published():
                self._at(Phase.WAITING)
            case protocol.Tick(wants_epoch=wants_epoch) if self._doing is Phase.ASKING:
                if not wants_epoch:
                    self._doing = Phase.IDLE  # to ask and find nothing is idling, too
                self._at(Phase.WAITING if wants_epoch else Phase.IDLE)
        for command in commands:
            if isinstance(command, protocol.RunEpoch):
                self._at(Phase.CHECKING)
            elif isinstance(command, protocol.Publish):
                self._at(Phase.PUBLISHING)

    def _at(self, phase: Phase) -> None:
        now = self.seconds()
        if self._doing is not None:
            self._lap.add(self._doing, (now - self._since) * 1000)
        self._doing, self._since = phase, now


@dataclass
class SnapshotStopwatch:
    """On the loop's thread: from command to answer, a lap per snapshot that was completed."""

    laps: RecentLaps
    seconds: Callable[[], float]
    commit_ms: Mapping[str, float]
    """By sink, how long its last commit took; the committer writes it before it answers."""
    _lap: Lap | None = None
    _step: Phase | None = None
    _since: float = 0.0
    _committing: frozenset[str] = frozenset()

    def heard(self, event: protocol.Event, commands: Sequence[protocol.Command]) -> None:
        """The coordinator has taken an event, and then wanted `commands`."""
        ended = self._end_step(event)
        for command in commands:
            self._begin_step(command)
        if ended and self._step is None:
            # Nothing follows: all is committed, or the snapshot is not to be.
            if self._lap is not None and _is_written(event):
                self.laps.add_snapshot(self._lap)
            self._lap = None

    def _end_step(self, event: protocol.Event) -> bool:
        if self._lap is None or self._step is None or _step_of(event) is not self._step:
            return False
        self._lap.add(self._step, (self.seconds() - self._since) * 1000)
        for sink in sorted(self._committing if self._step is Phase.COMMIT else ()):
            self._lap.add(Phase.COMMIT, self.commit_ms.get(sink, 0.0), sink)
        self._step = None
        return True

    def _begin_step(self, command: protocol.Command) -> None:
        match command:
            case protocol.AwaitSaved(snapshot_id):
                self._lap, step = Lap(snapshot_id), Phase.STATE
            case protocol.WriteManifest(manifest) if manifest.epoch_id > 0:
                self._lap, step = self._lap or Lap(manifest.snapshot_id), Phase.MANIFEST
            case protocol.WriteRecord(Purpose.SNAPSHOT):
                step = Phase.RECORD
            case protocol.Commit(artifacts=artifacts):
                self._committing = frozenset(artifact.sink for artifact in artifacts)
                step = Phase.COMMIT
            case protocol.WriteRecord(Purpose.COMMITTED):
                step = Phase.NOTE
            case _:
                return
        if self._lap is not None:
            self._step, self._since = step, self.seconds()


def _step_of(answer: protocol.Event) -> Phase | None:
    """The step that ends with this answer."""
    match answer:
        case protocol.Saved():
            return Phase.STATE
        case protocol.ManifestWritten() | protocol.ManifestFailed():
            return Phase.MANIFEST
        case protocol.RecordAnswer(Purpose.SNAPSHOT):
            return Phase.RECORD
        case protocol.Committed():
            return Phase.COMMIT
        case protocol.RecordAnswer(Purpose.COMMITTED):
            return Phase.NOTE
    return None


def _is_written(answer: protocol.Event) -> bool:
    return isinstance(answer, protocol.RecordAnswer) and answer.outcome is WriteOutcome.WRITTEN
