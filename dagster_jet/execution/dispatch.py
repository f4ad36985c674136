"""Assigns each command to a driver and to a thread beside the loop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dagster_jet.execution.epoch_driver import EpochDriver
from dagster_jet.execution.epoch_planner import PollRequest
from dagster_jet.execution.failures import Failures
from dagster_jet.execution.notifications import Notification
from dagster_jet.execution.recovery_driver import RecoveryDriver
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.execution.worker import Worker
from dagster_jet.exports.exporting import Exporting
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.coordinator_view import CoordinatorView

_logger = logging.getLogger(__name__)

_GRACE_S = 10.0
"""Seconds that the end waits for a running commit or write; the next start completes it otherwise.
"""


class Dispatch:
    """Dispatches the commands of one execution. Called on the loop's thread.

    The epochs' thread runs recovery, polls and epochs one after the other, because they share the
    sources and Spark's session. The snapshots' thread runs the steps after a snapshot's acks in the
    order of the commands, so that no write of the record overtakes another. Garbage collection
    waits for neither.
    """

    def __init__(
        self,
        job: str,
        recovery: RecoveryDriver,
        epochs: EpochDriver,
        snapshots: SnapshotDriver,
        failures: Failures,
        post: Callable[[Notification], None],
        exporting: Exporting,
    ) -> None:
        self._exporting = exporting
        self._recovery, self._epochs, self._snapshots = recovery, epochs, snapshots
        self._failures = failures
        self._epoch_worker = Worker(f"jet-epochs-{job}", post)
        self._snapshot_worker = Worker(f"jet-snapshots-{job}", post)
        self._garbage_worker = Worker(f"jet-garbage-{job}", post)

    def start(self, command: protocol.Command, view: CoordinatorView) -> None:
        match command:
            case protocol.RunEpoch():
                self._epoch_worker.start(lambda: self._epochs.run(command, view))
            case protocol.Publish():
                self._epoch_worker.start(lambda: self._snapshots.carry_out(command, view))
            case protocol.Claim():
                self._recover(self._recovery.claim)
            case protocol.LoadManifest(ref):
                self._recover(lambda: self._recovery.load(ref))
            case protocol.ImportSnapshot():
                self._recover(lambda: self._recovery.bring_in(command))
            case protocol.Restore(manifest):
                self._recover(lambda: self._recovery.restore(manifest))
            case protocol.AbortOrphans(execution_id, keep):
                self._recover(lambda: self._recovery.abort_orphans(execution_id, keep))
            case protocol.CollectGarbage():
                self._garbage_worker.start(lambda: self._collect(command))
            case _:
                self._snapshot_worker.start(lambda: self._snapshots.carry_out(command, view))

    def poll(self, request: PollRequest) -> None:
        self._epoch_worker.start(lambda: self._epochs.poll(request))

    def close_epochs(self) -> None:
        """Ends the epochs' thread: stops retries and waits for a running epoch."""
        self._snapshots.give_up()
        self._epoch_worker.close()

    def close(self) -> None:
        """Waits a short time for running commits and writes."""
        self._snapshot_worker.close(_GRACE_S)
        self._garbage_worker.close(_GRACE_S)

    def _recover(self, step: Callable[[], protocol.Event]) -> None:
        def work() -> protocol.Event:
            try:
                return step()
            except Exception as error:  # noqa: BLE001 - the coordinator decides the reaction
                return self._failures.event(error)

        self._epoch_worker.start(work)

    def _collect(self, command: protocol.CollectGarbage) -> None:
        try:
            with self._exporting.garbage:
                self._recovery.snapshots.delete(command.manifests, command.chunk_sets)
        except Exception as error:  # noqa: BLE001 - the next start collects the rest
            _logger.warning(
                "the files of an old snapshot could not be deleted, the next start deletes them: "
                "%s",
                error,
            )
