"""Waits with a warm Spark until a job is to be taken over from another process."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_jet.core.job_context import Parameters
from dagster_jet.errors import StoreError
from dagster_jet.execution.events import JobEvent, StandingBy
from dagster_jet.execution.start_connectors import on_store
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.sample_job import run_sample
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.ownership.succession import Succession, SuccessionWatch
from dagster_jet.ownership.supervision import read_supervision
from dagster_jet.pipeline.graph import EnrichNode, TransformNode
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease
from dagster_jet.spark.cluster.sample_session import sample_session
from dagster_jet.spark.cluster.session import activate, asks_for_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

_READ_EVERY_S = 0.25
"""For the job's record: an owner that has shut down is a gap in the committed rows."""
_READ_INTENT_EVERY_S = 1.0
_WARN_EVERY_S = 60.0
_LOOK_EVERY_S = 0.1
"""For a dead owner on this host, which needs no read of the store."""


class Standby:
    """Stands by for one job. A crash leaves nothing behind: it writes nothing to the store."""

    def __init__(
        self, order: Order, stop: StopSignal, emit: Callable[[JobEvent], None], run_id: str | None
    ) -> None:
        self._order, self._store, self._job = order, order.store, order.job
        self._stop, self._emit = stop, emit
        self._watch = SuccessionWatch(run_id=run_id)
        self._announced: int | None = None
        self._intent_read_at, self._warned_at = -_READ_INTENT_EVERY_S, -_WARN_EVERY_S

    @property
    def expired(self) -> Lease | None:
        """The lease of the owner that was seen to be dead."""
        return self._watch.expired

    def wait(self) -> Succession:
        """Warms Spark up, if possible with the job's pipeline, then waits. A stop ends it, too.

        Raises:
            MissingEnvironmentError: Java is missing.
            ConfigurationError: Spark already runs, with settings that do not fit.
        """
        self._warm_up()
        while self._stop.kind is None:
            try:
                record = read_record(self._store, self._job)
                seen = self.sees(record)
            except StoreError as error:  # the owner has the same trouble, and decides
                self._warn(error)
                self._watch.forget()
                record, seen = None, Succession.WAITS
            if seen is not Succession.WAITS:
                return seen
            self._announce(record)
            self.pause(record)
        return Succession.ENDS

    def _warn(self, error: StoreError) -> None:
        """Warns once a minute: an outage may last for hours."""
        if time.monotonic() - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = time.monotonic()
            _logger.warning("job %r: the standby cannot read its record: %s", self._job, error)

    def sees(self, record: ExecutionRecord | None) -> Succession:
        """Reads the job's intent once a second, and always before the standby acts."""
        seen, now = self._watch.sees(record), time.monotonic()
        if seen is Succession.WAITS and now - self._intent_read_at < _READ_INTENT_EVERY_S:
            return seen
        supervision = read_supervision(self._store, self._job)
        self._intent_read_at = now
        return self._watch.sees(record, supervision)

    def _announce(self, record: ExecutionRecord | None) -> None:
        if record is not None and record.execution_id != self._announced:
            self._announced = record.execution_id
            run_id = record.lease.run_id if record.lease is not None else None
            self._emit(StandingBy(self._job, record.execution_id, run_id))

    def pause(self, record: ExecutionRecord | None) -> None:
        """Returns early if a stop is requested, or the owner's process on this host is gone."""
        if record is not None and record.status is JobStatus.COMPLETING:
            self._stop.wait_for_another(None, _LOOK_EVERY_S)  # it is about to shut down
            return
        lease = record.lease if record is not None else None
        ends = time.monotonic() + _READ_EVERY_S
        while (left := ends - time.monotonic()) > 0:
            if self._stop.wait_for_another(None, min(_LOOK_EVERY_S, left)):
                return
            if lease is not None and is_owner_alive(lease) is False:
                return

    def _warm_up(self) -> None:
        with sample_session(self._order.spark) as opened:
            if opened is not None:
                with tempfile.TemporaryDirectory(prefix="jet-warm-up-") as folder:
                    run_sample(opened, Path(folder))
                if self._may_rehearse():
                    self._rehearse(opened())

    def _may_rehearse(self) -> bool:
        """Whether an analysis runs no function of the user's and reads no table.

        PySpark binds functions to the session that first sees them, with the variables of that
        moment, and a cluster's standby stops its session. Tables may be large or away.
        """
        if self._stop.kind is not None or asks_for_cluster(self._order.spark):
            return False
        return not any(
            isinstance(node, EnrichNode)
            or (isinstance(node, TransformNode) and not (node.is_constant or node.is_projection))
            for node in self._order.graph
        )

    def _rehearse(self, session: SparkSession) -> None:
        """Analyses the pipeline, which makes the analysis of its start faster.

        `Definition.at_start` is left out, because it may find the owner at the place of a
        connector, such as a consumer of a queue, and warn. A pipeline that needs it for its
        columns is analysed at its start only.
        """
        from dagster_jet.spark.planning.analysis import analyse
        from dagster_jet.spark.runtime import SparkRuntime

        graph, parameters = self._order.graph, Parameters(self._order.config.parameters)
        activate(session)
        try:
            with closing(SparkRuntime(session, self._job, {}, 1, parameters)) as runtime:
                analyse(runtime, on_store(graph, self._store), self._store.partition_count)
        except Exception as error:  # noqa: BLE001 - the start repeats it, and says what is wrong
            _logger.info("job %r: its pipeline cannot be analysed yet: %s", self._job, error)
