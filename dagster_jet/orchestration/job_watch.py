"""Main thread of a streaming run: waits for the job, reports, and handles interrupts.

Dagster raises its interrupt asynchronously in the main thread. Inside a py4j call that would
corrupt the gateway and hang every later call. So this thread never calls Spark: the job runs on a
driver thread, and this thread waits on an `Event` with short time-outs. `Thread.join` is not used:
after an interrupt CPython 3.11 marks a live thread as stopped and returns.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import dagster as dg

from dagster_jet.errors import JetError, JobStateError, LeaseHeldError, Reaction
from dagster_jet.execution.events import (
    CutNotWritten,
    ExecutionEnded,
    ExecutionRestarting,
    ExecutionStarted,
    GuaranteeLowered,
    InitialSnapshotSkipped,
    InputIgnored,
    InputLost,
    ItemsLost,
    JobEvent,
    MembersNotRepaired,
    MembersRepaired,
    OutputLost,
    OutputRefused,
    PipelineAnalysed,
    SinkReopened,
    SnapshotCommitted,
    SnapshotDropped,
    SnapshotFailed,
    SourceAvailable,
    SourceUnavailable,
    StandingBy,
)
from dagster_jet.orchestration.asset_reports import AssetEvent, AssetReports
from dagster_jet.orchestration.event_buffer import EventBuffer
from dagster_jet.orchestration.report_schedule import ReportSchedule
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.snapshot.protocol import StopKind

POLL_SECONDS = 0.2
INTERRUPTS = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt)


class RunningJob(Protocol):
    """The part of `dagster_jet.jobs.pipeline_job.PipelineJob` that is used here."""

    @property
    def name(self) -> str: ...
    @property
    def done(self) -> threading.Event: ...
    def result(self) -> Any: ...
    def request_stop(self, kind: StopKind, /) -> None: ...
    def release_lease(self) -> None: ...


class Log(Protocol):
    """The part of Dagster's log that is used here."""

    def info(self, message: object, /) -> None: ...
    def warning(self, message: object, /) -> None: ...


@dataclass
class JobWatch:
    """Watches one running job until it ends or the run is interrupted.

    Usually `events` ends with the job or with an interrupt. An interrupt that arrives while Dagster
    handles a yielded event is raised in Dagster's own frames and never reaches the generator; then
    Dagster's teardown calls `end`.

    Attributes:
        job: the running job.
        event_buffer: buffer that the job's driver thread puts its events into.
        reports: converts the job's events into asset events.
        schedule: limits the rate of reports.
        log: the run's log; a log line is a Dagster event too, so few are written.
        drain_budget_seconds: how long an interrupt waits for the terminal snapshot.
        on_started: called with the execution's id when an execution has taken the job.
        on_standby: called when the job stands by for an execution of another process.
        on_interrupt: called once, before the stop is requested: it says whether the job is to be
            started again, and a standby or a supervisor may act as soon as the job is down.
        is_idle: whether the job is alive and waits for input; called after a time without reports.
        warnings: returns new warnings about the store.
    """

    job: RunningJob
    event_buffer: EventBuffer
    reports: AssetReports
    schedule: ReportSchedule
    log: Log
    drain_budget_seconds: float
    on_interrupt: Callable[[], None]
    on_started: Callable[[int], None] = lambda execution_id: None
    on_standby: Callable[[StandingBy], None] = lambda event: None
    is_idle: Callable[[], bool] = lambda: False
    warnings: Callable[[], list[str]] = list
    is_anothers: bool = field(default=False, init=False)
    """Whether the job has ended here because another run executes it."""
    _is_up: bool = field(default=False, init=False)
    """Whether an execution has started and data flows."""
    _refused: Counter[str] = field(default_factory=Counter, init=False)
    """Rows that the place of each sink has refused since the run began."""
    _is_over: bool = field(default=False, init=False)
    """Whether the end of the job was reported, or its lease was released."""

    def events(self) -> Generator[AssetEvent, None, None]:
        """Yield materializations until the job has ended.

        An interrupt requests a terminal snapshot, waits for it within the drain budget, reports the
        committed output, and is re-raised; otherwise a cancelled run would count as successful. A
        second interrupt skips the wait. In every case the job has stopped or has lost its lease
        when this ends, so an orphan cannot decide a snapshot.

        Raises:
            dg.Failure: the job ended with an error; its cure is in the description.
        """
        try:
            while not self.job.done.wait(POLL_SECONDS):
                yield from self._news()
            yield from self._last_news()
            self._is_over = True
            self._check_result()
        except GeneratorExit:
            # The caller may be the garbage collector on any thread, even on the thread that should
            # stop, or the interpreter's shutdown, when no other thread runs. So request the stop
            # without waiting.
            with suppress(JobStateError):  # it has ended
                self.job.request_stop(StopKind.SHUTDOWN)
            raise
        except INTERRUPTS:
            self._stop()
            yield from self._last_news()
            self._is_over = True
            raise
        except BaseException:
            self._stop()
            raise

    def end(self) -> list[AssetEvent]:
        """Stop the job if Dagster abandoned the generator; return the outstanding reports.

        Returns nothing after the end of `events`. Then the job has stopped or has lost its lease.
        """
        if self._is_over:
            return []
        self._is_over = True
        self._stop()
        for event in self.event_buffer.drain():
            if isinstance(event, SnapshotCommitted):
                self.schedule.offer(event)
        newest = self.schedule.repeat_last()
        return (
            [] if newest is None else [*self.reports.committed(newest, wall_clock_ms(), again=True)]
        )

    def _stop(self) -> None:
        """Request a terminal snapshot and wait for it within the drain budget."""
        if self.job.done.is_set():
            return
        self.log.info(
            f"Stopping {self.job.name!r} with a terminal snapshot "
            f"(at most {self.drain_budget_seconds:g} s)."
        )
        try:
            deadline = time.monotonic() + self.drain_budget_seconds
            try:
                self.on_interrupt()
            finally:
                with suppress(JobStateError):  # it has just ended
                    self.job.request_stop(StopKind.SHUTDOWN)
                while not self.job.done.wait(POLL_SECONDS) and time.monotonic() < deadline:
                    pass
            if not self.job.done.is_set():
                self.log.warning(
                    f"{self.job.name!r} did not stop within {self.drain_budget_seconds:g} s: its "
                    "lease is released, and the next execution continues from the last committed "
                    "snapshot."
                )
        finally:
            if not self.job.done.is_set():
                # Crash window: the driver thread may still be in phase 1. It can finish that phase,
                # but without the lease its snapshot is not decided. Waiting longer would not help.
                self.job.release_lease()
                self._is_over = True

    def _news(self) -> Iterator[AssetEvent]:
        for event in self.event_buffer.drain():
            yield from self._report(event)
        for warning in self.warnings():
            self.log.warning(warning)
        snapshot = self.schedule.take(time.monotonic())
        if snapshot is not None:
            yield from self.reports.committed(snapshot, wall_clock_ms())
        elif self._is_up and (due := self.reports.idle_due(wall_clock_ms())) and self.is_idle():
            yield from self.reports.idle(due, wall_clock_ms())

    def _last_news(self) -> Iterator[AssetEvent]:
        for event in self.event_buffer.drain():
            yield from self._report(event)
        snapshot = self.schedule.take_last(time.monotonic())
        if snapshot is not None:
            yield from self.reports.last_committed(snapshot, wall_clock_ms())

    def _report(self, event: JobEvent) -> Iterator[AssetEvent]:
        match event:
            case SnapshotCommitted():
                self.schedule.offer(event)
            case PipelineAnalysed():
                self.reports.tables.ask(event.columns)
            case ExecutionStarted():
                self.is_anothers = False
                self.on_started(event.execution_id)
                self.log.info(_started(event))
                if event.restored_snapshot_id is not None:
                    self.schedule.note_restore(event.restored_snapshot_id, time.monotonic())
                yield from self.reports.restored(event, wall_clock_ms())
                self._is_up = True
            case StandingBy():
                self.is_anothers = True
                self.on_standby(event)
                self.log.info(f"Stands by: execution {event.execution_id} has the job.")
                yield from self.reports.standing_by(event)
            case ExecutionRestarting():
                self._is_up = False
                self.log.warning(
                    f"Execution {event.execution_id} failed ({event.reason}); attempt "
                    f"{event.attempt} begins in {event.delay_ms / 1000:g} s."
                )
            case SnapshotFailed() if event.failed_snapshots.bit_count() == 1:
                # Warn at the 1st, 2nd, 4th, 8th ... failure: one event per second would flood the
                # log.
                self.log.warning(
                    f"A snapshot of execution {event.execution_id} was discarded "
                    f"({event.reason}); {event.failed_snapshots} so far."
                )
            case CutNotWritten() if event.failures.bit_count() == 1:
                self.log.warning(
                    f"The epochs table lacks epoch {event.epoch_id} ({event.reason}); the job goes "
                    f"on. {event.failures} failures in a row."
                )
            case MembersRepaired():
                self.log.warning(
                    f"{', '.join(event.members)} was away too long: the store continues without "
                    f"it and has copied {event.partitions} partitions ({event.bytes} bytes). "
                    "When it is back, add it again with 'dagster-jet store add'."
                )
            case MembersNotRepaired():
                self.log.warning(
                    f"{', '.join(event.members)} does not come back, and the store cannot "
                    f"continue without it: {event.reason}"
                )
            case GuaranteeLowered():
                self.log.warning(
                    f"The stage {event.stage!r} gives the guarantee {event.effective.value}; the "
                    f"job asks for {event.wanted.value}."
                )
            case SourceUnavailable():
                self.log.warning(
                    f"The source {event.source!r} cannot be read: {event.reason} The job waits "
                    "for it, and meanwhile reads its other sources."
                )
            case SourceAvailable():
                self.log.info(f"The source {event.source!r} can be read again.")
            case SnapshotDropped():
                self.log.warning(
                    f"Snapshot {event.snapshot_id} is damaged and no longer retained: "
                    f"{event.reason}"
                )
            case ItemsLost() if _has_doubled(event.lost_in_all, event.lost):
                self.log.warning(
                    f"{event.lost} items of {event.source!r} were dropped before they were read; "
                    f"{event.lost_in_all} since the job began. Read more often, or raise the "
                    "source's retention."
                )
            case SinkReopened():
                self.log.warning(
                    f"{event.rows} rows that were decided before the sink {event.sink!r} "
                    f"{event.change.value} are committed to {event.place}."
                )
            case OutputLost():
                self.log.warning(
                    f"{event.rows} rows of {event.sink!r}, epochs {list(event.epoch_ids)}, are "
                    f"lost, as accept_loss allows: {event.reason}"
                )
            case OutputRefused():
                self._refused[event.sink] += event.rows
                if _has_doubled(self._refused[event.sink], event.rows):
                    self.log.warning(
                        f"{event.rows} rows of {event.sink!r}, epoch {event.epoch_id}, are in "
                        f"{event.dead_letter_sink!r} instead, as refused_to_dead_letters asks "
                        f"({self._refused[event.sink]} since the run began): {event.reason}"
                    )
            case InputLost():
                self.log.warning(
                    f"Input of {event.source!r} that epochs {list(event.epoch_ids)} had read is "
                    f"lost, as accept_loss allows: {', '.join(event.input)}"
                )
            case InputIgnored():
                self.log.warning(
                    f"{event.job!r} is COMPLETED and reads nothing more, although "
                    f"{_listed(event.waiting)} wait in {event.source!r}. Start from an older "
                    "snapshot with initial_snapshot=..., or give the pipeline another "
                    "name."
                )
            case InitialSnapshotSkipped():
                self.log.warning(f"{event.job!r}: {event.text}")
            case ExecutionEnded():
                self.log.info(
                    f"Execution {event.execution_id} ended: {event.status.value}, {event.reason}."
                )

    def _check_result(self) -> None:
        try:
            self.job.result()
        except LeaseHeldError as error:
            # A failure would mark the assets as failed, although the stream that writes them runs.
            self.is_anothers = True
            self.log.warning(f"Already running, nothing to do here: {error}")
        except JetError as error:
            raise as_failure(error) from error


def as_failure(error: JetError) -> dg.Failure:
    """Return an error as a Dagster failure: its message first, the stack trace after it."""
    return dg.Failure(
        description=str(error),
        metadata={"error": type(error).__name__, "reaction": error.reaction.value},
        # A second process would fail with the same wrong setting.
        allow_retries=error.reaction in (Reaction.RESTART, Reaction.RETRY),
    )


def _listed(waiting: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {unit}" for unit, number in waiting.items())


def _started(event: ExecutionStarted) -> str:
    origin = (
        "from the beginning"
        if event.restored_snapshot_id is None
        else f"from snapshot {event.restored_snapshot_id} (epoch {event.restored_epoch_id})"
    )
    return (
        f"Execution {event.execution_id} of {event.job!r} continues {origin}; ready after "
        f"{event.start_duration_ms / 1000:.1f} s, {event.restarts} restarts so far."
    )


def _has_doubled(total: int, new: int) -> bool:
    """Whether the total has passed a power of two (true for the first ones); limits log lines."""
    return total.bit_length() > (total - new).bit_length()
