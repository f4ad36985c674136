"""Where an execution's time goes: in its epochs, between them, and in its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dagster_jet.core.phases import Part, Phase, PhaseTime
from dagster_jet.execution.events import EpochCompleted
from dagster_jet.observe.writing.recent_timings import RecentTimings, Timing
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.protocol import WriteOutcome


@dataclass
class EpochStopwatch:
    """On the loop's thread, which sees all that begins and ends.

    A timing covers the time from one epoch's acks to those of the next, without gaps. The time
    from `protocol.RunEpoch` to the acks is what the epoch reports itself; what is missing there,
    on the way from thread to thread, is added to `Phase.CHECKING`.
    """

    timings: RecentTimings
    seconds: Callable[[], float]
    _doing: Phase | None = None
    """None: before the first poll of the sources."""
    _since: float = 0.0
    _timing: Timing = field(default_factory=Timing)

    def polls(self) -> None:
        """The sources are being asked."""
        self._at(Phase.ASKING)

    def completed(self, event: EpochCompleted) -> None:
        """Heard before the acks of the same epoch."""
        for time in event.times:
            self._timing.add(time.phase, time.ms, time.stage)
            if time.phase.part is Part.EPOCH:
                self._timing.add(Phase.CHECKING, -time.ms)  # it is within what is measured here
        self._timing.rows = event.rows

    def heard(self, event: protocol.Event, commands: Sequence[protocol.Command]) -> None:
        """The coordinator has taken an event, and then wanted `commands`."""
        match event:
            case protocol.EpochAcked(epoch_id=epoch_id):
                self._at(Phase.WAITING)
                self._timing.number = epoch_id
                self.timings.add_epoch(self._timing)
                self._timing = Timing()
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
            self._timing.add(self._doing, (now - self._since) * 1000)
        self._doing, self._since = phase, now


@dataclass
class SnapshotStopwatch:
    """On the loop's thread: a timing per snapshot that was completed."""

    timings: RecentTimings
    _timing: Timing | None = None

    def heard(self, event: protocol.Event) -> None:
        """The coordinator has taken an event."""
        match event:
            case protocol.Decided(manifest, outcome=WriteOutcome.WRITTEN) if manifest.epoch_id > 0:
                self._timing = Timing(manifest.snapshot_id)
                self._add(event.times)
                if manifest.is_committed:
                    self._end()
            case protocol.Completed():
                self._add(event.times)
                self._end()

    def _add(self, times: Sequence[PhaseTime]) -> None:
        if self._timing is not None:
            for time in times:
                self._timing.add(time.phase, time.ms, time.stage)

    def _end(self) -> None:
        if self._timing is not None:
            self.timings.add_snapshot(self._timing)
        self._timing = None
