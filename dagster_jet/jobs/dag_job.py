"""A DAG as a job of this process: executions in memory, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.dag import DAG
from dagster_jet.dag.local import LocalJob, LocalResult, LocalStatus, MemorySnapshots, Snapshot
from dagster_jet.errors import JobStateError
from dagster_jet.jobs.driven_job import DrivenJob
from dagster_jet.jobs.job import JobResult
from dagster_jet.snapshot.export import Export
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus


@dataclass(frozen=True)
class DagResult(JobResult):
    """The result of a run of a DAG."""

    snapshot: Snapshot | None = field(default=None, repr=False)
    """The newest one; `LocalJob(dag, restore=...)` goes on from it."""
    snapshots_taken: int = 0
    snapshots_failed: int = 0


class DagJob(DrivenJob):
    """Runs a DAG without Spark, for tests and development. `Jet.submit` makes it.

    It has no record: `Jet.jobs` does not show it, and its snapshots end with the process. With the
    guarantee "none" there are no snapshots to go on from, and it can only be cancelled.

    Args:
        dag: validated at once.
        guarantee: "none": no snapshots.
        snapshot_interval_ms: None: only on request; 0: one after the other.
        parallelism: how many instances a vertex has that does not say it.
        max_retention_ms: see `WatermarkCoalescer`.
    """

    def __init__(
        self,
        dag: DAG,
        *,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        snapshot_interval_ms: int | None = None,
        parallelism: int = 1,
        max_retention_ms: int | None = None,
    ) -> None:
        super().__init__(dag.name)
        self.snapshots = MemorySnapshots()
        """The last few; they outlive the executions, not the process."""
        self._open = partial(
            LocalJob,
            dag,
            guarantee=guarantee,
            snapshot_interval_ms=snapshot_interval_ms,
            parallelism=parallelism,
            max_retention_ms=max_retention_ms,
            snapshots=self.snapshots,
        )
        self._status = JobStatus.NOT_RUNNING
        self._moving = threading.Lock()
        """Held while an execution follows another: a request is for the one or the other."""
        self.local = self._open()
        """The newest execution: for snapshots on request, and what holds watermarks back."""

    @property
    def status(self) -> JobStatus:
        """Where the job is in its life, now."""
        return self._status

    def start(self) -> None:
        """Starts its first execution, or, after `suspend`, one from the newest snapshot."""
        if self._status is JobStatus.SUSPENDED:
            self.local = self._open(restore=self.snapshots.latest())
        self._status = JobStatus.RUNNING
        self.local.start()
        super().start()

    def request_stop(self, kind: StopKind) -> None:
        """Asks it to stop; see `Job.request_stop`.

        Raises:
            JobStateError: it does not run; it cannot COMPLETE from outside; or it has no snapshots,
                and is not cancelled.
        """
        if kind is StopKind.COMPLETE:
            raise JobStateError(
                "a DAG cannot be told that its inputs are over.",
                job=self.name,
                cure="It is COMPLETED when `complete()` of its sources has returned True.",
            )
        needs_snapshot = kind in (StopKind.SUSPEND, StopKind.RESTART)
        if needs_snapshot and self.local.guarantee is Guarantee.NONE:
            raise JobStateError(
                f'cannot {kind.value}: with the guarantee "none" there is no snapshot.',
                job=self.name,
                cure="Cancel it, or choose another guarantee.",
            )
        with self._moving:
            if not self._status.is_live:
                raise self._has_ended(kind)
            super().request_stop(kind)
            self._carry_out(self.local)

    def _export(self, name: str, timeout: float | None, *, cancels: bool) -> Export:
        raise JobStateError(
            "a DAG runs in memory, and its snapshots end with this process.",
            job=self.name,
            cure="Keep what DagJob.local.export_snapshot() returns, for LocalJob(restore=...), or "
            "write a pipeline.",
        )

    def _carry_out(self, local: LocalJob) -> None:
        """Tells an execution what the job is asked for; it ends by itself then."""
        match self._stop_signal.kind:
            case StopKind.SUSPEND | StopKind.RESTART:
                with suppress(JobStateError):  # it has just ended
                    local.request_snapshot(terminal=True)
            case StopKind.CANCEL:
                _beside(local.cancel)
            case StopKind.SHUTDOWN:
                _beside(local.shut_down)
            case _:
                return
        self._status = JobStatus.COMPLETING

    def _drive(self) -> JobResult:
        try:
            while True:
                result = self.local.result()
                with self._moving:
                    kind = self._stop_signal.kind
                    if kind is not StopKind.RESTART or result.status is LocalStatus.COMPLETED:
                        self._status = _final_status(result, kind)
                        return self._result_of(result)
                    self._restart()
        except BaseException:
            with self._moving:
                self._status = JobStatus.FAILED
            raise

    def _restart(self) -> None:
        self.local = self._open(restore=self.snapshots.latest())
        self.local.start()
        self._status = JobStatus.RUNNING
        self._stop_signal.restarted()

    def _result_of(self, result: LocalResult) -> DagResult:
        return DagResult(
            status=self._status,
            rows_in=0,
            rows_out=0,
            snapshot_id=result.snapshot.snapshot_id if result.snapshot is not None else None,
            epochs=0,
            snapshot=result.snapshot,
            snapshots_taken=result.snapshots_taken,
            snapshots_failed=result.snapshots_failed,
        )


def _final_status(result: LocalResult, asked: StopKind | None) -> JobStatus:
    if result.status is LocalStatus.COMPLETED:
        return JobStatus.COMPLETED
    return StopKind.CANCEL.final_status if asked is None else asked.final_status


def _beside(end: Callable[[], None]) -> None:
    """Ends an execution on a thread of its own: calls that block may keep it from ending."""
    threading.Thread(target=end, name="jet-end", daemon=True).start()
