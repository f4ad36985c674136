"""One execution of a DAG in this process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

from dagster_jet.dag import DAG, Guarantee, Partitioning, ProcessorContext, SnapshotContext
from dagster_jet.dag.calls import Callback
from dagster_jet.dag.local.instances import Wiring
from dagster_jet.dag.local.partitioner import partitioning as default_partitioning
from dagster_jet.dag.local.snapshot_coordinator import SnapshotCoordinator
from dagster_jet.dag.local.snapshots import MemorySnapshots, Snapshot
from dagster_jet.dag.local.watermark_hold import VertexWatermarkHold, watermark_holds
from dagster_jet.dag.scheduler import GRACE_S, Scheduler
from dagster_jet.dag.tasklet import INBOX_LIMIT
from dagster_jet.errors import ConfigurationError, JobStateError

_logger = logging.getLogger(__name__)

SLOW_CALL_S = 0.01

_MOMENT_S = 1.0
"""Time in seconds for the remaining work after blocking calls were abandoned."""


class LocalStatus(str, Enum):
    """State of a local job."""

    NOT_RUNNING = "not running"
    """`start` has not been called."""
    RUNNING = "running"
    COMPLETED = "completed"
    """Every processor has ended."""
    CANCELLED = "cancelled"
    """Stopped from outside, with or without a terminal snapshot."""
    FAILED = "failed"
    """A processor or the runtime raised; `result` raises it."""


@dataclass(frozen=True)
class LocalResult:
    """The result of a local job."""

    status: LocalStatus
    snapshots_taken: int
    snapshots_failed: int
    snapshot: Snapshot | None
    """The snapshot kept last: pass it as `restore=` to continue."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class LocalJob:
    """Runs a DAG without Spark: same processors, same barriers, threads instead of executors.

    It runs in memory, for tests and development: its snapshots end with the process.

    It can be started once. To restart, create another one with ``restore=`` a snapshot of this
    one. The parallelism may change: each entry goes to the present owner of its key. The number
    of partitions must not change.

    Args:
        dag: validated at once.
        guarantee: "exactly-once", "at-least-once" or "none".
        snapshot_interval_ms: None: only on request; 0: without pauses.
        parallelism: default number of instances of a vertex.
        restore: begin from this snapshot.
        snapshots: keeps the snapshots; by default created for this job.
        partitioning: partitioning of keys; by default the store's, which is Spark's.
        inbox_limit: largest number of items that `process` receives at once.
        max_retention_ms: see `WatermarkCoalescer`.
        slow_call_s: longer cooperative calls are logged, once per vertex and callback.
        now_ms: a monotonic clock, for intervals and retained watermarks.
        name: name of the job, in errors; by default the DAG's.

    Raises:
        ConfigurationError: an argument is out of its range, or "none" has snapshots.
        PipelineError: the DAG is not valid.

    Example:
        >>> from dagster_jet.dag import DAG, Processor
        >>> dag = DAG("nothing")
        >>> vertex = dag.new_vertex("source", Processor)
        >>> LocalJob(dag).run().status.value
        'completed'
    """

    def __init__(
        self,
        dag: DAG,
        *,
        guarantee: Guarantee | str = Guarantee.EXACTLY_ONCE,
        snapshot_interval_ms: int | None = None,
        parallelism: int = 1,
        restore: Snapshot | None = None,
        snapshots: MemorySnapshots | None = None,
        partitioning: Partitioning | None = None,
        inbox_limit: int = INBOX_LIMIT,
        max_retention_ms: int | None = None,
        slow_call_s: float = SLOW_CALL_S,
        now_ms: Callable[[], int] = _now_ms,
        name: str | None = None,
    ) -> None:
        self.name = name or dag.name
        self.guarantee = _guarantee(guarantee)
        if parallelism < 1 or inbox_limit < 1:
            raise ConfigurationError("parallelism and inbox_limit must be 1 or more.")
        if snapshot_interval_ms is not None and snapshot_interval_ms < 0:
            raise ConfigurationError(
                f"snapshot_interval_ms is {snapshot_interval_ms}; use 0 or more."
            )
        if self.guarantee is Guarantee.NONE and (snapshot_interval_ms is not None or restore):
            raise ConfigurationError(
                'the guarantee "none" has no snapshots.',
                job=self.name,
                cure="Leave out snapshot_interval_ms and restore, or choose another guarantee.",
            )
        dag.validate()
        self.snapshots = snapshots if snapshots is not None else MemorySnapshots()
        self._warned: set[tuple[str, Callback]] = set()
        self._status = LocalStatus.NOT_RUNNING
        self._error: BaseException | None = None
        self._cancelled = self._is_stepped = False
        self._ended = threading.Event()
        self._now_ms = now_ms
        partitioning = partitioning or default_partitioning()
        context = SnapshotContext(0 if restore is None else restore.snapshot_id + 1)
        wiring = Wiring(
            dag=dag,
            job=self.name,
            guarantee=self.guarantee,
            parallelism=parallelism,
            partitioning=partitioning,
            inbox_limit=inbox_limit,
            max_retention_ms=max_retention_ms,
            now_ms=now_ms,
            clock=time.perf_counter,
            slow_call_s=slow_call_s,
            # If the clock was set back, transactions that should be rolled back stay; none is
            # rolled back wrongly.
            fencing_token=time.time_ns(),
            on_slow_call=self._slow,
        )
        self._dag = dag
        self._participants = participants = wiring.participants(context, restore)
        self._coordinator = SnapshotCoordinator(
            context,
            participants,
            self.snapshots,
            partition_count=partitioning.partition_count,
            interval_ms=snapshot_interval_ms,
            awaited=dag.awaited(),
            now_ms=now_ms(),
        )
        self._scheduler = Scheduler(
            [participant.tasklet for participant in participants],
            on_round=lambda: self._coordinator.tick(now_ms()),
            on_end=self._end,
            name=f"jet-{self.name}",
        )

    @property
    def status(self) -> LocalStatus:
        """The present state of the job."""
        return self._status

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._status is LocalStatus.RUNNING and not self._ended.is_set()

    # --- running --------------------------------------------------------------------------------

    def run(self, timeout_s: float | None = None) -> LocalResult:
        """Start it and wait for the end.

        Raises:
            ProcessorError: a processor broke its contract or raised.
            TimeoutError: it has not ended in time. It is cancelled, which takes more time.
        """
        self.start()
        try:
            return self.result(timeout_s)
        finally:
            if not self._ended.is_set():
                self.cancel()

    def start(self) -> LocalJob:
        """Start the threads and return at once.

        Raises:
            JobStateError: it was started before.
        """
        if self._status is not LocalStatus.NOT_RUNNING:
            raise JobStateError(
                "the job has already been started.",
                job=self.name,
                cure="Create another LocalJob; restore= continues from a snapshot.",
            )
        self._status = LocalStatus.RUNNING
        self._scheduler.start()
        return self

    def step(self) -> bool:
        """Call each tasklet once, on this thread and always in the same order.

        Used instead of `start`, in tests that need a deterministic order.

        Returns:
            False: the job has ended; `result` returns the outcome.

        Raises:
            JobStateError: it was started with `start`.
        """
        if self._status is LocalStatus.NOT_RUNNING:
            self._status, self._is_stepped = LocalStatus.RUNNING, True
        if not self._is_stepped:
            raise JobStateError("the job already runs on its own threads.", job=self.name)
        return not self._ended.is_set() and self._scheduler.step()

    def result(self, timeout_s: float | None = None) -> LocalResult:
        """Wait for the end and return the result.

        Raises:
            TimeoutError: it has not ended in time.
            ProcessorError: a processor broke its contract or raised.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"job {self.name!r} has not ended within {timeout_s} s")
        if self._error is not None:
            raise self._error
        coordinator = self._coordinator
        return LocalResult(
            self._status, coordinator.taken, coordinator.failed, self.snapshots.latest()
        )

    # --- control --------------------------------------------------------------------------------

    def request_snapshot(self, *, terminal: bool = False) -> Future[Snapshot]:
        """Request a snapshot and return at once; the future is done when phase 2 is complete.

        Args:
            terminal: the job ends with it: no item behind its barrier is processed. If all
                processors have ended before, the job is completed, and the future fails.

        Raises:
            JobStateError: the job is not running, or its guarantee is "none".
        """
        self._require_snapshots()
        return self._coordinator.request(terminal=terminal)

    def snapshot(self, timeout_s: float | None = 60) -> Snapshot:
        """Take a snapshot now and return it after its phase 2; the job continues.

        Raises:
            SnapshotFailedError: it could not be kept, or the job ended first.
            JobStateError: as `request_snapshot`.
            TimeoutError: it is not complete in time.
        """
        return self.request_snapshot().result(timeout_s)

    def export_snapshot(self, name: None = None, *, timeout_s: float | None = 60) -> Snapshot:
        """Take a snapshot that only saves: nothing is prepared or committed for it.

        Raises:
            ConfigurationError: a name was given, which only a snapshot in a store can have.
            SnapshotFailedError, JobStateError, TimeoutError: as `snapshot`.
        """
        if name is not None:
            raise ConfigurationError(
                f"a snapshot cannot be exported as {name!r}: those of a DAG are in memory.",
                job=self.name,
                cure="Keep what export_snapshot() returns, for LocalJob(restore=...).",
            )
        self._require_snapshots()
        return self._coordinator.request(export_only=True).result(timeout_s)

    def cancel_and_snapshot(self, timeout_s: float | None = 60) -> Snapshot:
        """Take a terminal snapshot and end: no item behind its barrier is processed.

        Raises:
            SnapshotFailedError, JobStateError, TimeoutError: as `snapshot`.
        """
        snapshot = self.request_snapshot(terminal=True).result(timeout_s)
        self.result(timeout_s)
        return snapshot

    def cancel(self, timeout_s: float = GRACE_S) -> None:
        """End it without a snapshot, like a crash, except that processors are closed.

        Args:
            timeout_s: how long to wait for calls that block. A processor that does not return is
                logged and its thread abandoned. If it is cooperative, the job does not end.
        """
        if self._status is LocalStatus.NOT_RUNNING:
            return
        self._cancelled = True
        self._scheduler.stop(timeout_s)
        if self._is_stepped:
            self.step()
        if not self._scheduler.join(timeout_s + _MOMENT_S):
            _logger.warning("job %r is cancelled, but has not ended yet", self.name)

    def held_back_by(self) -> list[VertexWatermarkHold]:
        """Return the present watermark holds with their start; may be slightly outdated."""
        return watermark_holds(self._dag, self._participants, self._now_ms())

    # --- private --------------------------------------------------------------------------------

    def _require_snapshots(self) -> None:
        if self.guarantee is Guarantee.NONE:
            raise JobStateError('the guarantee "none" has no snapshots.', job=self.name)
        if self._status is not LocalStatus.RUNNING:
            raise JobStateError(f"the job is {self._status.value}, not running.", job=self.name)

    def _end(self, error: BaseException | None) -> None:
        self._coordinator.end(error)
        self._error = error
        if error is not None:
            self._status = LocalStatus.FAILED
        elif self._cancelled or self._coordinator.ended_by_request:
            self._status = LocalStatus.CANCELLED
        else:
            self._status = LocalStatus.COMPLETED
        self._ended.set()

    def _slow(self, context: ProcessorContext, callback: Callback, took_s: float) -> None:
        if (context.vertex, callback) in self._warned:
            return
        self._warned.add((context.vertex, callback))
        _logger.warning(
            "%s#%d.%s() blocked the cooperative thread for %.1f ms: do less per call, or set "
            "is_cooperative to False",
            context.vertex,
            context.index,
            callback.method,
            1000 * took_s,
        )


def _guarantee(value: Guarantee | str) -> Guarantee:
    try:
        return Guarantee(value)
    except ValueError:
        names = ", ".join(repr(g.value) for g in Guarantee)
        raise ConfigurationError(f"guarantee is {value!r}; expected one of {names}.") from None
