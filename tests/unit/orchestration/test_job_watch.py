"""The main thread of a run: it reports, it answers interrupts, it never leaves an orphan."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import pytest

from dagster_jet.errors import ExecutorLostError, FencedError, JetError, SourceError
from dagster_jet.execution.events import (
    ExecutionStarted,
    JobEvent,
    OutputRefused,
    SnapshotCommitted,
)
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.event_buffer import EventBuffer
from dagster_jet.orchestration.event_iterator import JetEventIterator
from dagster_jet.orchestration.job_watch import JobWatch
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.report_schedule import ReportSchedule
from dagster_jet.snapshot.protocol import StopKind

OUT = ReportedAsset("out", dg.AssetKey("out"), None, is_sink=True, has_state=False)


def snapshot(number: int) -> SnapshotCommitted:
    return SnapshotCommitted("j", 1, number, number, 0, 0, 0, 0, 0, 0, {}, {})


@dataclass
class ScriptedJob:
    """A job whose driver thread does what a test says: the seam to the engine, without Spark."""

    script: Callable[[ScriptedJob], object]
    name: str = "j"
    event_buffer: EventBuffer = field(default_factory=EventBuffer)
    done: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    calls: list[str] = field(default_factory=list)
    error: JetError | None = None

    def start(self) -> ScriptedJob:
        threading.Thread(target=self._drive, daemon=True).start()
        return self

    def _drive(self) -> None:
        self.script(self)
        self.done.set()

    def commit(self, number: int) -> None:
        event: JobEvent = snapshot(number)
        self.event_buffer.put(event)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error

    def request_stop(self, kind: StopKind, /) -> None:
        self.calls.append(kind.value)
        self.stop.set()

    def release_lease(self) -> None:
        self.calls.append("release")


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: object, /) -> None:
        self.lines.append(str(message))

    warning = info


def start_watch(job: ScriptedJob, budget: float = 10, on_interrupt: Any = lambda: None) -> JobWatch:
    job.start()
    return JobWatch(
        job=job,
        event_buffer=job.event_buffer,
        reports=AssetReports([OUT]),
        schedule=ReportSchedule(0),
        log=Log(),
        drain_budget_seconds=budget,
        on_interrupt=on_interrupt,
    )


def watch(job: ScriptedJob, budget: float = 10, on_interrupt: Any = lambda: None) -> Any:
    return JetEventIterator(start_watch(job, budget, on_interrupt).events())


def number(event: dg.AssetMaterialization) -> object:
    return event.metadata["snapshot"].value


def interrupt_main_thread() -> None:
    """Sends a signal whose handler raises in the main thread, as Dagster's termination does."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_a_job_that_ends_by_itself_reports_its_last_snapshot() -> None:
    job = ScriptedJob(lambda job: [job.commit(n) for n in (1, 2, 3)])
    assert [number(e) for e in watch(job)][-1:] == [3]
    assert job.calls == []


@pytest.mark.parametrize(("pending", "last"), [(41, []), (42, []), (43, [43])])
def test_no_older_snapshot_is_reported_after_a_restored_one(pending: int, last: list[int]) -> None:
    """Failed before: the report interval held 41 back, the execution after it was restored from 42,
    and an interval later the assets had the older version."""
    restored = ExecutionStarted("j", 2, 1, 42, 42, 0, {})
    job = ScriptedJob(lambda job: (job.commit(pending), job.event_buffer.put(restored)))
    watch = start_watch(job)
    watch.schedule = ReportSchedule(30)
    assert [number(e) for e in watch.events()] == [42, *last]
    assert (watch.schedule.repeat_last() is not None) == bool(last)


def test_rows_that_a_sink_refuses_in_each_epoch_do_not_flood_the_log() -> None:
    """Failed before: a table that refuses a row a commit wrote one event of Dagster's log each."""

    def refuse(job: ScriptedJob) -> None:
        for epoch in range(1, 101):
            for sink in ("out", "more")[: 1 + (epoch == 7)]:
                event = OutputRefused("j", 1, sink, epoch, 1, "bad", "not null")
                job.event_buffer.put(event)

    observed = start_watch(ScriptedJob(refuse))
    assert [*observed.events()] == []
    assert isinstance(observed.log, Log)
    lines = [line for line in observed.log.lines if "refused_to_dead_letters" in line]
    of_more = [line for line in lines if "of 'more'" in line]
    assert len(of_more) == 1 and "epoch 7" in of_more[0]
    said = [line.split(" since")[0].rpartition("(")[2] for line in lines if "of 'out'" in line]
    assert said == ["1", "2", "4", "8", "16", "32", "64"]


def test_an_interrupt_drains_reports_and_is_raised_again() -> None:
    def script(job: ScriptedJob) -> None:
        job.commit(1)
        job.stop.wait()
        job.commit(2)  # the terminal snapshot

    job, noted, seen = ScriptedJob(script), [], []
    events = watch(job, on_interrupt=lambda: noted.append([*job.calls]))
    with pytest.raises(KeyboardInterrupt):
        for event in events:
            seen.append(number(event))
            if len(seen) == 1:  # a second one would come into the tests behind
                threading.Timer(0.3, interrupt_main_thread).start()
    assert seen == [1, 2]
    assert job.calls == ["shutdown"]
    assert noted == [[]], "written down once, before a standby can see that the job is down"


def test_dagsters_own_interrupt_is_treated_alike() -> None:
    job = ScriptedJob(lambda job: (job.commit(1), job.stop.wait(), job.commit(2)))
    events = watch(job)
    assert number(next(events)) == 1
    assert number(events.throw(dg.DagsterExecutionInterruptedError())) == 2
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        next(events)
    assert job.calls == ["shutdown"]


def test_a_drain_that_takes_too_long_loses_the_lease_before_the_interrupt_goes_on() -> None:
    never = threading.Event()
    job = ScriptedJob(lambda job: (job.commit(1), never.wait(60)))
    events = watch(job, budget=0.3)
    next(events)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        events.throw(dg.DagsterExecutionInterruptedError())
    assert job.calls == ["shutdown", "release"]
    never.set()


def test_a_second_interrupt_skips_the_drain() -> None:
    never = threading.Event()
    job = ScriptedJob(lambda job: (job.commit(1), never.wait(60)))
    events = watch(job, budget=50)
    next(events)
    threading.Timer(0.3, interrupt_main_thread).start()
    with pytest.raises(KeyboardInterrupt):
        events.throw(dg.DagsterExecutionInterruptedError())
    assert job.calls == ["shutdown", "release"]
    never.set()


def test_a_dropped_iterator_asks_for_a_stop_and_does_not_wait() -> None:
    """The thread that collects the garbage may be the one that has to stop."""
    let_go = threading.Event()
    job = ScriptedJob(lambda job: (job.commit(1), job.stop.wait(), let_go.wait(60)))
    events = watch(job)
    next(events)
    events.close()
    assert job.calls == ["shutdown"]
    assert not job.done.is_set()
    let_go.set()


def test_a_second_interrupt_is_not_answered_by_another_drain_at_the_end() -> None:
    never = threading.Event()
    job = ScriptedJob(lambda job: (job.commit(1), never.wait(60)))
    watch = start_watch(job, budget=50)
    events = watch.events()
    next(events)
    threading.Timer(0.3, interrupt_main_thread).start()
    with pytest.raises(KeyboardInterrupt):
        events.throw(dg.DagsterExecutionInterruptedError())
    assert watch.end() == []
    assert job.calls == ["shutdown", "release"], "asked once, and given up for good"
    never.set()


def test_the_end_of_a_dropped_watch_drains_and_hands_out_the_last_snapshot() -> None:
    job, noted = ScriptedJob(lambda job: (job.commit(1), job.stop.wait(), job.commit(2))), []
    watch = start_watch(job, on_interrupt=lambda: noted.append(True))
    next(watch.events())
    assert [number(e) for e in watch.end()] == [2]
    assert job.done.is_set()
    assert set(job.calls) == {"shutdown"}, "asked when dropped, asked again at the end"
    assert noted == [True]
    assert watch.end() == [], "once"


def test_the_end_of_a_dropped_watch_repeats_a_report_that_was_cut_short() -> None:
    job = ScriptedJob(lambda job: (job.commit(1), job.stop.wait()))
    watch = start_watch(job)
    events = watch.events()
    assert number(next(events)) == 1
    assert [number(e) for e in watch.end()] == [1], "other assets may not have got it"


def test_the_end_of_a_dropped_watch_takes_the_lease_of_a_job_that_does_not_stop() -> None:
    never = threading.Event()
    job = ScriptedJob(lambda job: (job.commit(1), never.wait(60)))
    watch = start_watch(job, budget=0.3)
    events = watch.events()
    next(events)
    watch.end()
    assert job.calls == ["shutdown", "release"]
    never.set()


def test_after_the_usual_end_nothing_is_left_to_say() -> None:
    job = ScriptedJob(lambda job: job.commit(1))
    watch = start_watch(job)
    assert [number(e) for e in watch.events()] == [1]
    assert watch.end() == []
    assert job.calls == []


def test_an_error_of_the_consumer_stops_the_job_too() -> None:
    job = ScriptedJob(lambda job: (job.commit(1), job.stop.wait()))
    events = watch(job)
    next(events)
    with pytest.raises(ZeroDivisionError):
        events.throw(ZeroDivisionError())
    assert job.done.is_set()


def test_a_note_that_fails_does_not_cut_the_drain_short() -> None:
    def script(job: ScriptedJob) -> None:
        job.commit(1)
        job.stop.wait()
        threading.Event().wait(0.3)

    def fail() -> None:
        raise OSError("event log locked")

    job = ScriptedJob(script)
    events = watch(job, on_interrupt=fail)
    next(events)
    with pytest.raises(OSError, match="locked"):
        events.throw(dg.DagsterExecutionInterruptedError())
    assert job.calls == ["shutdown"]
    assert job.done.is_set()


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (SourceError("gone", job="j", cure="Bring it back."), False),
        (FencedError("a newer execution"), False),
        (ExecutorLostError("lost"), True),
    ],
)
def test_the_jobs_error_becomes_a_failure_that_says_what_to_do(
    error: JetError, retry: bool
) -> None:
    job = ScriptedJob(lambda job: job.commit(1), error=error)
    events, seen = watch(job), []
    with pytest.raises(dg.Failure) as failure:
        seen.extend(events)
    assert failure.value.description == str(error)
    assert failure.value.allow_retries is retry
    assert failure.value.__cause__ is error
