"""Keeps the epochs table of a job: its newest cut (`connectors.lake.cut`), beside the stream.

A snapshot that is committed in all sinks leaves its cut to a thread, which writes the newest one
and leaves out those that came in between. So a place that is slow or away delays no epoch and
fails no job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from dagster_jet.connectors.delta.epochs_table import EpochsTable
from dagster_jet.connectors.lake.cut import Cut
from dagster_jet.connectors.lake.lake_sink import LakeSink
from dagster_jet.core.secret import Secret
from dagster_jet.errors import ConfigurationError
from dagster_jet.execution.context import ExecutionContext
from dagster_jet.execution.events import CutNotWritten
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.start_connectors import effective_guarantee
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.system.backoff import Backoff

_logger = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_ENDING_S = 5.0
"""Longest wait for the last cut at an execution's end. The next execution writes a missing one."""

Publish = Callable[[Manifest], None]


class CutPublisher:
    """Writes cuts on a thread of its own, the newest one first, until one is written.

    Args:
        job: name of the job.
        write: writes a cut; it may raise.
        failed: told of a cut that was not written, why, and how often in a row that was so.
    """

    def __init__(
        self, job: str, write: Callable[[Cut], None], failed: Callable[[Cut, str, int], None]
    ) -> None:
        self._write, self._failed = write, failed
        self._changed = threading.Condition()
        self._newest: Cut | None = None
        self._is_ending = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"jet-cuts-{job}", daemon=True)
        self._thread.start()

    def offer(self, cut: Cut) -> None:
        """Has a cut written in place of the one that waits. Returns at once."""
        with self._changed:
            self._newest = cut
            self._changed.notify()

    def close(self) -> None:
        """Waits a short time for the last cut, and not at all if none could be written lately."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(0 if self._failures else _ENDING_S)

    def _run(self) -> None:
        cut: Cut | None = None
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._newest is not None or self._is_ending,
                    None if cut is None else pauses.next_s(),
                )
                cut, self._newest = self._newest or cut, None
                is_last = self._is_ending
            if cut is None:
                return
            try:
                self._write(cut)
            except Exception as error:  # noqa: BLE001 - the job goes on without it
                self._failures += 1
                self._failed(cut, str(error) or type(error).__name__, self._failures)
            else:
                cut, self._failures = None, 0
                pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            if is_last:
                return


def publisher_of(
    context: ExecutionContext,
    committer: SinkCommitter,
    execution_id: int,
    epochs_table: str | None,
    storage_options: Mapping[str, str | Secret],
) -> tuple[Publish, Callable[[], None]]:
    """Returns the callback for snapshots that all sinks have committed, and one that ends it.

    Args:
        epochs_table: URL of the table; None: there is none.
        storage_options: options of its bucket.

    Raises:
        ConfigurationError: the epochs table cannot be there.
    """
    config, job, graph = context.config, context.job, context.graph
    sinks = [
        node.name
        for node in graph.sinks
        if isinstance(node.sink, LakeSink)
        and effective_guarantee(config.guarantee, node.sink) is Guarantee.EXACTLY_ONCE
    ]
    if epochs_table is None or not sinks:
        return lambda manifest: None, lambda: None
    home = (context.store.store_id, context.store.config.namespace)
    table = EpochsTable.at(epochs_table, storage_options, *home, job)
    where = {sink: committer.destinations[sink] for sink in sinks}
    for sink, destination in where.items():
        if destination.get("path") == table.url:
            raise ConfigurationError(
                f"epochs_table: {table.url!r} is the table of a sink.",
                job=job,
                stage=sink,
                cure="Name a folder of its own.",
            )

    def failed(cut: Cut, reason: str, failures: int) -> None:
        if failures.bit_count() == 1:  # the 1st, 2nd, 4th ... : a job may have a cut a second
            _logger.warning(
                "job %r: the epochs table lacks the cut of epoch %d: %s", job, cut.epoch_id, reason
            )
        context.emit(CutNotWritten(job, execution_id, cut.epoch_id, reason, failures))

    publisher = CutPublisher(job, table.write, failed)

    def publish(manifest: Manifest) -> None:
        if manifest.held:
            return  # their tables lack rows of the epoch
        publisher.offer(Cut.of(manifest, where, committer.facts, context.clock.now_ms()))

    return publish, publisher.close
