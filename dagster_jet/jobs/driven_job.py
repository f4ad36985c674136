"""A job that a thread of this process drives: the waiting and the asking that all such share."""

from __future__ import annotations

import threading
from abc import abstractmethod

from dagster_jet.errors import JobStateError
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.jobs.job import Job, JobResult
from dagster_jet.jobs.moves import refuse_without_name
from dagster_jet.snapshot.export import Export
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus


class DrivenJob(Job):
    """Subclasses say by `_drive` what the thread does until the job ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stop_signal = StopSignal()
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        self.done = threading.Event()
        """Set when the driver thread has ended. Wait on it, not on the thread."""

    @property
    def name(self) -> str:
        return self._name

    @abstractmethod
    def _drive(self) -> JobResult:
        """Runs the job to its end, on the driver thread. What it raises is the job's error."""

    def start(self) -> None:
        """Starts the driver thread and returns at once. Called once; then there is `resume`."""
        thread = threading.Thread(target=self._run, name=f"jet-driver-{self.name}", daemon=True)
        thread.start()

    def result(self, timeout: float | None = None) -> JobResult:
        if not self._wait(timeout):
            raise TimeoutError(f"job {self.name!r} is still running")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _wait(self, timeout: float | None) -> bool:
        """Waits until the job has ended; returns whether it has."""
        return self.done.wait(timeout)

    def request_stop(self, kind: StopKind) -> None:
        refuse_without_name(self.name, kind)
        if self.done.is_set():
            raise self._has_ended(kind)
        self._stop_signal.request(kind)

    def export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        return self._export(name, timeout, cancels=False)

    def cancel_and_export_snapshot(self, name: str, timeout: float | None = 60) -> Export:
        if self.done.is_set():
            raise self._has_ended(StopKind.CANCEL_AND_EXPORT)
        return self._export(name, timeout, cancels=True)

    @abstractmethod
    def _export(self, name: str, timeout: float | None, *, cancels: bool) -> Export:
        """Has a snapshot exported, and waits for it."""

    def resume(self) -> None:
        if not self.done.is_set() or self.status is not JobStatus.SUSPENDED:
            raise JobStateError(
                f"cannot resume: the job is {self.status.value}.",
                job=self.name,
                cure="Only a suspended job can be resumed.",
            )
        self._result = self._error = None
        self._stop_signal = StopSignal()
        self.done = threading.Event()
        self.start()

    def _has_ended(self, kind: StopKind) -> JobStateError:
        return JobStateError(
            f"cannot {kind.value}: the job has ended in this process.",
            job=self.name,
            cure="Submit it again to go on.",
        )

    def _run(self) -> None:
        try:
            self._result = self._drive()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the result
            self._error = error
        finally:
            self.done.set()
