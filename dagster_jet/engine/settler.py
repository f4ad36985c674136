"""What follows a snapshot's acks: the rest of its state, the manifest, the record (the decision),
commits, removal of what is obsolete. On a thread beside the next epoch, which waits for none of it.

The coordinator says here, too, what comes next. What the execution's own thread has to know is put
into a queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dagster_jet.core.failpoint import fail_point
from dagster_jet.engine.events import SourceProgress, StageProgress
from dagster_jet.engine.record_keeper import RecordKeeper
from dagster_jet.engine.saving import await_saved
from dagster_jet.engine.snapshot_store import SnapshotStore
from dagster_jet.engine.source_journals import SourceJournals
from dagster_jet.errors import JetError
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.protocol import Purpose, WriteOutcome
from dagster_jet.snapshot.record import SnapshotRef

_GRACE_S = 10.0


@dataclass(frozen=True)
class Progress:
    """How far stages and sources were at a barrier."""

    stages: dict[str, StageProgress]
    sources: dict[str, SourceProgress]


@dataclass(frozen=True)
class Settled:
    """A snapshot is decided and committed."""

    snapshot: SnapshotRef
    progress: Progress
    phase1_ms: float
    """From its acks to the decision."""
    phase2_ms: float
    bytes_written: int


Told = Settled | protocol.Stop | None
"""None: something has changed, look again."""


@dataclass
class Settler:
    """Of one execution. Its own thread calls it; `told` is for that thread."""

    handle: Callable[[protocol.Event], Sequence[protocol.Command]]
    """The coordinator's, from any thread."""
    keeper: RecordKeeper
    snapshots: SnapshotStore
    journals: SourceJournals
    commit: Callable[[protocol.Commit], None]
    """Makes everything true that the snapshot names; until it has, or is told to give up."""
    failed: Callable[[Exception], protocol.Failed]
    now_ms: Callable[[], int]
    told: queue.SimpleQueue[Told] = field(default_factory=queue.SimpleQueue)
    _threads: list[threading.Thread] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)

    def begin(
        self, command: protocol.AwaitSaved | protocol.WriteManifest, progress: Progress
    ) -> None:
        """Goes on by itself to the end; a crash inside is settled by the next start."""
        acked_at = time.monotonic()
        self._in_background(lambda: self._settle(command, progress, acked_at))

    def carry_out(self, command: protocol.Command) -> protocol.Event:
        """One step, on any thread.

        Raises:
            JetError: of a manifest or a commit. So does a fail point.
        """
        match command:
            case protocol.AwaitSaved(snapshot_id, acks):
                whole = tuple(await_saved(ack, self._closing) for ack in acks)
                return protocol.Saved(snapshot_id, whole, self.now_ms())
            case protocol.WriteManifest(manifest):
                fail_point("manifest.before")
                self.snapshots.write(manifest)
                fail_point("manifest.after")
                return protocol.ManifestWritten(manifest.snapshot_id, self.now_ms())
            case protocol.WriteRecord(purpose, record):
                outcome = self.keeper.write(record, purpose)
                return protocol.RecordAnswer(purpose, outcome, self.now_ms())
            case protocol.Commit(snapshot_id):
                execution_id = self.keeper.last_execution_id
                assert execution_id is not None
                self.commit(command)
                return protocol.Committed(execution_id, snapshot_id, self.now_ms())
        raise TypeError(f"{type(command).__name__} is not part of settling a snapshot")

    def collect(self, command: protocol.CollectGarbage) -> None:
        """Best effort, beside everything else."""
        self._in_background(lambda: self.snapshots.delete(command.manifests, command.chunk_sets))

    def close(self) -> None:
        """Waits a little for what is going on, but for no more state."""
        self._closing.set()
        for thread in self._threads:
            thread.join(_GRACE_S)

    # --- on its thread --------------------------------------------------------------------------

    def _settle(self, first: protocol.Command, progress: Progress, acked_at: float) -> None:
        decided_at = committed_at = acked_at
        bytes_written = 0
        pending: list[protocol.Command] = [first]
        obsolete: list[protocol.CollectGarbage] = []
        while pending:
            command = pending.pop(0)
            event = self._answer_to(command)
            match command, event:
                case protocol.WriteManifest(manifest), _:
                    bytes_written = manifest.bytes_written
                case _, protocol.Committed():
                    committed_at = time.monotonic()
                case (
                    protocol.WriteRecord(purpose, record),
                    protocol.RecordAnswer(_, WriteOutcome.WRITTEN),
                ):
                    if purpose is Purpose.SNAPSHOT:
                        decided_at = committed_at = time.monotonic()
                        self.journals.decided()  # before another snapshot may begin
                    is_last = purpose in (Purpose.SNAPSHOT, Purpose.COMMITTED)
                    newest = record.snapshots[0]
                    if is_last and newest.committed and newest.epoch_id > 0:
                        phase1_ms = (decided_at - acked_at) * 1000
                        phase2_ms = (committed_at - decided_at) * 1000
                        self.told.put(
                            Settled(newest, progress, phase1_ms, phase2_ms, bytes_written)
                        )
            for then in self.handle(event):
                match then:
                    case protocol.Stop():
                        self.told.put(then)  # at once: it also ends commits that are being retried
                    case protocol.CollectGarbage():
                        obsolete.append(then)
                    case _:
                        pending.append(then)
        self.told.put(None)
        for garbage in obsolete:
            self.snapshots.delete(garbage.manifests, garbage.chunk_sets)

    def _answer_to(self, command: protocol.Command) -> protocol.Event:
        """A thread that died silently would hang the job: whatever goes wrong is an answer."""
        try:
            return self.carry_out(command)
        except Exception as error:  # noqa: BLE001 - see above
            match command:
                case protocol.AwaitSaved(snapshot_id, acks):
                    told = tuple(replace(ack, snapshot_error=str(error)) for ack in acks)
                    return protocol.Saved(snapshot_id, told, self.now_ms())
                case protocol.WriteManifest(manifest):
                    return protocol.ManifestFailed(manifest.snapshot_id, str(error), self.now_ms())
                case protocol.WriteRecord(purpose):
                    return protocol.RecordAnswer(purpose, WriteOutcome.UNKNOWN, self.now_ms())
                case protocol.Commit(snapshot_id) if not isinstance(error, JetError):
                    reason = f"phase 2 of snapshot {snapshot_id}: {type(error).__name__}: {error}"
                    return protocol.Failed(reason, restartable=True)
            return self.failed(error)

    def _in_background(self, work: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=work, name="jet-settler", daemon=True)
        self._threads.append(thread)
        thread.start()
