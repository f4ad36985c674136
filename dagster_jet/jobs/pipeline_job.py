"""A pipeline that this process runs: the handle that users hold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.execution.events import JobEvent
from dagster_jet.execution.exporting import Exporting
from dagster_jet.execution.stopping import Until
from dagster_jet.job_config import JobConfig
from dagster_jet.jobs.completed import ignored_input
from dagster_jet.jobs.driven_job import DrivenJob
from dagster_jet.jobs.driver import Driver
from dagster_jet.jobs.exporting import ExportWatcher, export_snapshot
from dagster_jet.jobs.job import JobResult
from dagster_jet.jobs.members_repairer import MembersRepairer
from dagster_jet.jobs.requests import RequestWatcher
from dagster_jet.jobs.run_progress import RunProgress
from dagster_jet.jobs.totals import result_of
from dagster_jet.jobs.watched_wait import wait
from dagster_jet.ownership.admission import quorum
from dagster_jet.ownership.lease import is_owner_alive, wall_clock_ms
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.pipeline.graph import Graph
from dagster_jet.snapshot.export import Export
from dagster_jet.snapshot.record import Doing, ExecutionRecord, JobStatus
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store
from dagster_jet.telemetry import JobMetrics, open_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


class PipelineJob(DrivenJob):
    """Drives a pipeline on a thread of its own until it ends. Made by `Jet.submit`."""

    def __init__(
        self,
        *,
        name: str,
        graph: Graph,
        config: JobConfig,
        until: Until,
        store: Store,
        open_session: Callable[[], SparkSession],
        work_dir: Path,
        on_event: Callable[[JobEvent], None] | None,
        run_id: str | None,
        show_progress: bool = False,
    ) -> None:
        super().__init__(name)
        self._graph, self._config, self._store = graph, config, store
        self._on_event = on_event if on_event is not None else _ignore
        self._shows_progress, self._progress = show_progress, RunProgress(name)
        self._exporting = Exporting()
        self._metrics: JobMetrics | None = None
        self._driver = Driver(
            name=name,
            graph=graph,
            config=config,
            until=until,
            store=store,
            open_session=open_session,
            work_dir=work_dir,
            emit=self._emit,
            run_id=run_id,
            exporting=self._exporting,
        )

    @property
    def record(self) -> ExecutionRecord | None:
        """The record as a majority of the store's members knows it."""
        return read_record(self._store, self.name)

    @property
    def status(self) -> JobStatus:
        record = self.record
        return record.status if record is not None else JobStatus.NOT_RUNNING

    @property
    def is_anothers(self) -> bool:
        """Somebody else drives the job: this process never had it, or has lost it.

        Raises:
            StoreUnavailableError: too few members answer.
        """
        keeper = self._driver.keeper
        if keeper is not None and keeper.last_execution_id is not None:
            return keeper.fenced.is_set()
        record = self.record
        if record is None or not record.status.is_live or record.lease is None:
            return False
        return is_owner_alive(record.lease) is not False

    @property
    def is_newest(self) -> bool:
        """Nobody else has had the job since: what this handle knows of its end is still so."""
        record, keeper = self.record, self._driver.keeper
        return (
            record is not None
            and keeper is not None
            and keeper.last_execution_id == record.execution_id
        )

    @property
    def is_idle(self) -> bool:
        """This process drives the job, and the job waits for input."""
        keeper = self._driver.keeper
        return keeper is not None and keeper.headway.activity().doing is Doing.IDLE

    def _export(self, name: str, timeout: float | None, *, cancels: bool) -> Export:
        def drives() -> bool:
            return not self.done.is_set()

        return export_snapshot(
            self._store, self.name, name, timeout, cancels=cancels, drives=drives
        )

    def release_lease(self) -> None:
        """Gives up the right to decide, now: the execution cannot commit anything new any more."""
        if self._driver.keeper is not None:
            self._driver.keeper.abandon()

    def _emit(self, event: JobEvent) -> None:
        self._progress.note(event)
        if self._metrics is not None:
            self._metrics.note(event)
        self._on_event(event)

    def _wait(self, timeout: float | None) -> bool:
        return wait(self.done, timeout, lambda: self._progress, shows=self._shows_progress)

    def _drive(self) -> JobResult:
        self._progress = RunProgress(self.name)
        sinks = frozenset(node.name for node in self._graph.sinks)
        self._metrics = open_metrics(self.name, sinks, self._store, wall_clock_ms)
        try:
            return self._drive_measured()
        finally:
            if self._metrics is not None:
                self._metrics.close()

    def _drive_measured(self) -> JobResult:
        record = self.record
        if record is not None and self._stays_completed(record):
            return self._still_completed(record)
        last_execution_id = record.execution_id if record is not None else 0
        stop = self._stop_signal
        with (
            ExportWatcher(
                self._store,
                self.name,
                self._exporting,
                stop,
                takes_snapshots=self._config.guarantee is not Guarantee.NONE,
                last_execution_id=last_execution_id,
            ),
            RequestWatcher(self._store, self.name, stop, last_execution_id=last_execution_id),
            MembersRepairer(
                self._store,
                self.name,
                self._config.member_timeout_s,
                self._emit,
                fewest=self._fewest_members(record),
            ) as repairer,
        ):
            return self._driver.run(stop, repairer)

    def _fewest_members(self, record: ExecutionRecord | None) -> int:
        if not self._config.split_brain_protection:
            return 0
        seen = record.members_max if record is not None else 0
        return quorum(max(seen, len(self._store.table.members)))

    def _stays_completed(self, record: ExecutionRecord) -> bool:
        goes_back_to = self._config.initial_snapshot
        goes_back = goes_back_to is not None and goes_back_to != record.rewound_to
        return record.status is JobStatus.COMPLETED and not goes_back

    def _still_completed(self, record: ExecutionRecord) -> JobResult:
        result = partial(
            result_of,
            record,
            sources=[node.name for node in self._graph.sources],
            sinks=[node.name for node in self._graph.sinks],
        )
        if record.snapshot is None:
            return result({})
        manifest = SnapshotStore(self._store, self.name).load(record.snapshot)
        ignored = list(ignored_input(self.name, self._graph, self._store, manifest))
        for event in ignored:
            _logger.warning(
                "job %r is COMPLETED and reads nothing more, although input waits in %r: %s",
                self.name,
                event.source,
                event.waiting,
            )
            self._emit(event)
        waiting = {event.source: event.waiting for event in ignored}
        return result(manifest.counters, ignored_input=waiting)


def _ignore(event: JobEvent) -> None:
    """Nobody listens."""
