"""Carries out a snapshot after its acks: phase 1 up to the decision, phase 2 up to its note in the
record.

The next epoch runs meanwhile and waits for neither phase.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dagster_jet.core.phases import Phase, PhaseClock, PhaseTime
from dagster_jet.errors import JetError
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Ack, Manifest
from dagster_jet.snapshot.protocol import Purpose, WriteOutcome
from dagster_jet.snapshot.record import ExecutionRecord, SnapshotRef
from dagster_jet.state.upload import await_saved
from dagster_jet.system.failpoint import fail_point

_logger = logging.getLogger(__name__)


class ManifestStore(Protocol):
    """The part of `SnapshotStore` that keeps manifests."""

    def write(self, manifest: Manifest) -> int: ...


@dataclass
class SnapshotDriver:
    """Carries out one execution's snapshot commands. One thread calls it, and every command must
    be answered."""

    write_record: Callable[[ExecutionRecord, Purpose], WriteOutcome]
    manifests: ManifestStore
    journals: SourceJournals
    committer: SinkCommitter
    commit_stages: Callable[[Collection[str], CoordinatorView], None]
    """Lets these stages commit what their processors have prepared."""
    acknowledge: Callable[[Mapping[str, Mapping[str, Any]]], bool]
    """Has sources acknowledge messages, as the last step, because only committed messages may be
    removed. Returns whether all are confirmed."""
    failures: Failures
    now_ms: Callable[[], int]
    committed: Callable[[Manifest], None] = lambda manifest: None
    """Told of a snapshot that is committed in all sinks, once the record says so. Returns at once.
    """
    await_saved: Callable[[Ack, threading.Event], Ack] = await_saved
    seconds: Callable[[], float] = time.monotonic
    _closing: threading.Event = field(default_factory=threading.Event)

    def carry_out(self, command: protocol.Command, view: CoordinatorView) -> protocol.Event:
        """Answers a command. An error is an answer, too: without one the job would hang.

        After a crash inside, the next start completes or discards the snapshot.
        """
        match command:
            case protocol.Decide():
                return self._decide(command)
            case protocol.WriteRecord(purpose, record):
                return protocol.RecordAnswer(
                    purpose, self._write_record(purpose, record), self.now_ms()
                )
        try:
            return self._commit(command, view)
        except JetError as error:
            failed = self.failures.event(error)
        except Exception as error:  # noqa: BLE001 - see above
            reason = f"phase 2: {type(error).__name__}: {error}"
            failed = protocol.Failed(reason, restartable=True)
        if isinstance(failed, protocol.Failed):
            failed = replace(failed, completing=isinstance(command, protocol.Complete))
        return failed

    def give_up(self) -> None:
        """Stops waiting for state and retrying commits."""
        self._closing.set()
        self.committer.retrying.ending.set()

    def _decide(self, command: protocol.Decide) -> protocol.Decided:
        """Does S4 to S6. A failure before the write of the record discards the snapshot."""
        clock = PhaseClock(self.seconds)
        manifest, acks, record = command.manifest, command.acks, command.record
        outcome, reason = WriteOutcome.UNAVAILABLE, ""
        try:
            if any(ack.saving for ack in acks):
                acks = tuple(self.await_saved(ack, self._closing) for ack in acks)
                clock.end(Phase.STATE)
            reason = next((ack.snapshot_error for ack in acks if ack.snapshot_error), "")
            if not reason:
                manifest = manifest.with_saved(acks)
                ref = self._write_manifest(manifest)
                clock.end(Phase.MANIFEST)
        except Exception as error:  # noqa: BLE001 - as above
            reason = str(error) or type(error).__name__
        if not reason:
            record = record.with_snapshot(ref, command.retained_snapshots)
            # Decision point: once this write is on a majority of members the snapshot is valid.
            outcome = self._write_record(Purpose.SNAPSHOT, record)
            clock.end(Phase.RECORD)
            if outcome is WriteOutcome.WRITTEN:
                self.journals.decided()  # before another snapshot may begin
                if manifest.is_committed:
                    self.committed(manifest)
            else:
                reason = "fewer than a majority of the store's members answered"
        return protocol.Decided(
            manifest, acks, record, outcome, self.now_ms(), reason, clock.times()
        )

    def _write_manifest(self, manifest: Manifest) -> SnapshotRef:
        fail_point("manifest.before")
        checksum = self.manifests.write(manifest)
        fail_point("manifest.after")
        return manifest.ref(checksum, self.now_ms())

    def _write_record(self, purpose: Purpose, record: ExecutionRecord) -> WriteOutcome:
        try:
            return self.write_record(record, purpose)
        except Exception:
            _logger.exception("the record could not be written")
            return WriteOutcome.UNKNOWN

    def _commit(self, command: protocol.Command, view: CoordinatorView) -> protocol.Event:
        match command:
            case protocol.Complete(manifest, record, recovering):
                clock = PhaseClock(self.seconds)
                self.committer.commit(manifest.due, manifest.sinks, recovering=recovering)
                self.commit_stages(manifest.prepared, view)
                is_confirmed = self.acknowledge(manifest.unacknowledged)
                clock.end(Phase.COMMIT)
                noted = record.with_note(
                    self.now_ms(), includes_held=recovering, is_confirmed=is_confirmed
                )
                outcome = self._write_record(Purpose.COMMITTED, noted)
                clock.end(Phase.NOTE)
                if outcome is WriteOutcome.WRITTEN:  # so no later execution had begun to commit
                    self.committed(manifest)
                times = (*clock.times(), *self._commit_times(manifest))
                snapshot_id, sinks = manifest.snapshot_id, {a.sink for a in manifest.due}
                outputs = {s: f for s, f in self.committer.facts.items() if s in sinks}
                return protocol.Completed(
                    record.execution_id,
                    snapshot_id,
                    outcome,
                    self.now_ms(),
                    times,
                    outputs,
                    is_confirmed,
                )
            case protocol.Publish(epoch_id, artifacts):
                here = self.committer.destinations
                self.committer.commit(artifacts, here, recovering=False, repeatable=True)
                return protocol.Published(epoch_id)
        raise TypeError(f"{type(command).__name__} does not follow a snapshot's acks")

    def _commit_times(self, manifest: Manifest) -> tuple[PhaseTime, ...]:
        """Returns the duration of each sink's commit."""
        took_ms = self.committer.took_ms
        sinks = sorted({artifact.sink for artifact in manifest.due})
        return tuple(PhaseTime(Phase.COMMIT, took_ms.get(sink, 0.0), sink) for sink in sinks)
