"""Waits with a warm Spark until a job is to be taken over from another process."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dagster_jet.errors import StoreError
from dagster_jet.execution.events import JobEvent, StandingBy
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.jobs.sample_job import run_sample
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.ownership.succession import Succession, SuccessionWatch
from dagster_jet.ownership.supervision import read_supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease
from dagster_jet.spark.cluster.sample_session import sample_session
from dagster_jet.store import Store

_logger = logging.getLogger(__name__)

_READ_EVERY_S = 1.0
_LOOK_EVERY_S = 0.1
"""For a dead owner on this host, which needs no read of the store."""


class Standby:
    """Stands by for one job. A crash leaves nothing behind: it writes nothing to the store."""

    def __init__(
        self,
        store: Store,
        job: str,
        stop: StopSignal,
        emit: Callable[[JobEvent], None],
        run_id: str | None,
        spark: Mapping[str, str],
    ) -> None:
        """
        Args:
            spark: settings of the session in which the job will run.
        """
        self._spark = spark
        self._store, self._job, self._stop, self._emit = store, job, stop, emit
        self._watch = SuccessionWatch(run_id=run_id)
        self._announced: int | None = None

    @property
    def expired(self) -> Lease | None:
        """The lease of the owner that was seen to be dead."""
        return self._watch.expired

    def wait(self) -> Succession:
        """Warms Spark up, then waits. A requested stop ends it, too.

        Raises:
            MissingEnvironmentError: Java is missing.
            ConfigurationError: Spark already runs, with settings that do not fit.
        """
        _warm_up(self._spark)
        while self._stop.kind is None:
            try:
                record = read_record(self._store, self._job)
                seen = self._watch.sees(record, read_supervision(self._store, self._job))
            except StoreError as error:  # the owner has the same trouble, and decides
                _logger.warning("job %r: the standby cannot read its record: %s", self._job, error)
                record, seen = None, Succession.WAITS
            if seen is not Succession.WAITS:
                return seen
            self._announce(record)
            self._pause(record)
        return Succession.ENDS

    def _announce(self, record: ExecutionRecord | None) -> None:
        if record is not None and record.execution_id != self._announced:
            self._announced = record.execution_id
            run_id = record.lease.run_id if record.lease is not None else None
            self._emit(StandingBy(self._job, record.execution_id, run_id))

    def _pause(self, record: ExecutionRecord | None) -> None:
        """Returns early if a stop is requested, or the owner's process on this host is gone."""
        if record is not None and record.status is JobStatus.COMPLETING:
            self._stop.wait_for_another(None, _LOOK_EVERY_S)  # it is about to shut down
            return
        lease = record.lease if record is not None else None
        ends = time.monotonic() + _READ_EVERY_S
        while time.monotonic() < ends and not self._stop.wait_for_another(None, _LOOK_EVERY_S):
            if lease is not None and is_owner_alive(lease) is False:
                return


def _warm_up(spark: Mapping[str, str]) -> None:
    with sample_session(spark) as opened:
        if opened is not None:
            with tempfile.TemporaryDirectory(prefix="jet-warm-up-") as folder:
                run_sample(opened, Path(folder))
