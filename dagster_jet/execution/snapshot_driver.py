"""Carries out what follows a snapshot's acks, one step at a time: the rest of its state, the
manifest, the record (the decision), commits. Beside the next epoch, which waits for none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dagster_jet.errors import JetError
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Ack, Manifest
from dagster_jet.snapshot.protocol import Purpose, WriteOutcome
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.state.upload import await_saved
from dagster_jet.system.failpoint import fail_point


class ManifestStore(Protocol):
    """The part of `SnapshotStore` that keeps manifests."""

    def write(self, manifest: Manifest) -> int: ...


@dataclass
class SnapshotDriver:
    """Of one execution. One thread calls it, which must get an answer to everything."""

    write_record: Callable[[ExecutionRecord, Purpose], WriteOutcome]
    manifests: ManifestStore
    journals: SourceJournals
    committer: SinkCommitter
    commit_stages: Callable[[Collection[str], CoordinatorView], None]
    """Lets these stages commit what their processors have prepared."""
    acknowledge: Callable[[Mapping[str, Mapping[str, Any]]], None]
    """Has sources acknowledge what was read: last, only what is committed may go."""
    failures: Failures
    now_ms: Callable[[], int]
    await_saved: Callable[[Ack, threading.Event], Ack] = await_saved
    _closing: threading.Event = field(default_factory=threading.Event)

    def carry_out(self, command: protocol.Command, view: CoordinatorView) -> protocol.Event:
        """One step. Whatever goes wrong is an answer: without one the job would hang.

        A crash inside is made good by the next start.
        """
        try:
            return self._carry_out(command, view)
        except Exception as error:  # noqa: BLE001 - see above
            match command:
                case protocol.AwaitSaved(snapshot_id, acks):
                    failed = tuple(replace(ack, snapshot_error=str(error)) for ack in acks)
                    return protocol.Saved(snapshot_id, failed, self.now_ms())
                case protocol.WriteManifest(manifest):
                    return protocol.ManifestFailed(manifest.snapshot_id, str(error), self.now_ms())
                case protocol.WriteRecord(purpose):
                    return protocol.RecordAnswer(purpose, WriteOutcome.UNKNOWN, self.now_ms())
                case protocol.Commit(snapshot_id) if not isinstance(error, JetError):
                    reason = f"phase 2 of snapshot {snapshot_id}: {type(error).__name__}: {error}"
                    return protocol.Failed(reason, restartable=True)
            return self.failures.event(error)

    def give_up(self) -> None:
        """Waits for no more state, and tries no commit again."""
        self._closing.set()
        self.committer.retrying.ending.set()

    def _carry_out(self, command: protocol.Command, view: CoordinatorView) -> protocol.Event:
        match command:
            case protocol.AwaitSaved(snapshot_id, acks):
                whole = tuple(self.await_saved(ack, self._closing) for ack in acks)
                return protocol.Saved(snapshot_id, whole, self.now_ms())
            case protocol.WriteManifest(manifest):
                fail_point("manifest.before")
                digest = self.manifests.write(manifest)
                fail_point("manifest.after")
                return protocol.ManifestWritten(manifest.snapshot_id, self.now_ms(), digest)
            case protocol.WriteRecord(purpose, record):
                outcome = self.write_record(record, purpose)
                if purpose is Purpose.SNAPSHOT and outcome is WriteOutcome.WRITTEN:
                    self.journals.decided()  # before another snapshot may begin
                return protocol.RecordAnswer(purpose, outcome, self.now_ms())
            case protocol.Commit(snapshot_id):
                assert view.record is not None
                self.committer.commit(
                    command.artifacts, command.sinks, recovering=command.recovering
                )
                self.commit_stages(command.prepared, view)
                self.acknowledge(command.unacknowledged)
                return protocol.Committed(view.record.execution_id, snapshot_id, self.now_ms())
            case protocol.Publish(epoch_id, artifacts):
                here = self.committer.destinations
                self.committer.commit(artifacts, here, recovering=False, repeatable=True)
                return protocol.Published(epoch_id)
        raise TypeError(f"{type(command).__name__} does not follow a snapshot's acks")
