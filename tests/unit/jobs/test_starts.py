"""A start takes the lease first, then Spark; if it fails, the record says why."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.errors import (
    ExecutorLostError,
    JetError,
    LeaseHeldError,
    MissingEnvironmentError,
)
from dagster_jet.execution.events import ExecutionRestarting, InitialSnapshotSkipped, JobEvent
from dagster_jet.execution.stopping import Until
from dagster_jet.jobs import requests, restarts, wiring
from dagster_jet.jobs.deletion import delete_job
from dagster_jet.jobs.job import JobResult
from dagster_jet.jobs.job_order import Order
from dagster_jet.jobs.pipeline_job import PipelineJob
from dagster_jet.ownership.liveness import LeaseWatch
from dagster_jet.ownership.record_keeper import RecordKeeper, read_record, record_register
from dagster_jet.snapshot.protocol import Stop, StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause
from dagster_jet.spark.cluster.executor_watch import ExecutorsGoneError
from dagster_jet.start_options import StartOptions
from dagster_jet.store import Store, StoreConfig

DRAINED = Until(input_ends=True, stop=StopKind.SHUTDOWN)


@dataclass
class World:
    """A store, and jobs whose Spark does what a test says instead of starting."""

    folder: Path
    store: Store
    spark_starts: list[ExecutionRecord | None] = field(default_factory=list)
    """The record whenever Spark was asked for."""
    events: list[JobEvent] = field(default_factory=list)
    on_restarting: Callable[[], None] = lambda: None

    def job(
        self,
        spark: Callable[[PipelineJob], None],
        initial_snapshot: int | None = None,
        until: Until = DRAINED,
        **settings: Any,
    ) -> PipelineJob:
        """Job that is not yet started. `spark` raises, instead of returning a session."""

        def open_session() -> None:
            self.spark_starts.append(self.record())
            spark(job)
            raise AssertionError("this test has no Spark")

        p = Pipeline("j")
        source = sources.files(str(self.folder / "in"), format="json", schema="k string")
        p.read_from(source, name="in").write_to(
            sinks.files(str(self.folder / "out"), format="json"), name="out"
        )
        (self.folder / "in").mkdir(exist_ok=True)
        job = PipelineJob(
            Order(
                job="j",
                graph=p.graph,
                config=JobConfig(**{"restart_attempts_max": 2, **settings}),
                options=StartOptions(initial_snapshot),
                until=until,
                store=self.store,
                work_dir=self.folder / "work",
            ),
            open_session,
            on_event=self.on_event,
            run_id="run-1",
        )
        return job

    def on_event(self, event: JobEvent) -> None:
        self.events.append(event)
        if isinstance(event, ExecutionRestarting):
            self.members_are_back()
            self.on_restarting()

    def members_are_away(self) -> None:
        for member in "bc":
            (self.folder / member).rename(self.folder / f"away-{member}")

    def members_are_back(self) -> None:
        for member in "bc":
            if (self.folder / f"away-{member}").exists():
                (self.folder / f"away-{member}").rename(self.folder / member)

    def record(self) -> ExecutionRecord | None:
        return read_record(self.store, "j")

    def ended(self) -> ExecutionRecord:
        record = self.record()
        assert record is not None
        return record


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    urls = tuple(f"file://{tmp_path}/{m}" for m in "abc")
    with Store.open(StoreConfig(urls, lease_ttl="1 second")) as store:
        yield World(tmp_path, store)


def result_of(job: PipelineJob) -> JobResult:
    job.start()
    return job.result(60)


def raises(error: JetError) -> Callable[[PipelineJob], None]:
    def spark(job: PipelineJob) -> None:
        raise error

    return spark


def cancelled_while(error: JetError) -> Callable[[PipelineJob], None]:
    def spark(job: PipelineJob) -> None:
        job.request_stop(StopKind.CANCEL)
        raise error

    return spark


def test_a_start_beside_a_living_owner_ends_before_spark_does_anything(world: World) -> None:
    owner = RecordKeeper(world.store, "j", 1_000, run_id="run-0")
    owner.claim(change=None)
    surplus = world.job(raises(MissingEnvironmentError("no Java")))
    with pytest.raises(LeaseHeldError, match="run run-0, has just renewed"):
        result_of(surplus)
    assert surplus.is_anothers
    assert world.spark_starts == []
    record = world.ended()
    assert (record.execution_id, record.failure) == (1, None) and record.lease is not None
    owner.release(record)


def test_whoever_looks_while_spark_starts_sees_that_the_job_is_taken(world: World) -> None:
    job = world.job(raises(MissingEnvironmentError("no Java")))
    with pytest.raises(MissingEnvironmentError):
        result_of(job)
    (seen,) = world.spark_starts
    assert seen is not None and seen.lease is not None
    assert (seen.status, seen.lease.run_id) == (JobStatus.STARTING, "run-1")
    assert not job.is_anothers


def test_a_start_that_fails_says_so_in_the_record(world: World) -> None:
    with pytest.raises(MissingEnvironmentError):
        result_of(world.job(raises(MissingEnvironmentError("no Java"))))
    record = world.ended()
    assert (record.status, record.cause) == (JobStatus.FAILED, StopCause.ERROR)
    assert record.failure == "no Java" and record.lease is None


def test_a_start_that_fails_suspends_where_that_is_wanted(world: World) -> None:
    """The job keeps the cause. An error that may be gone at the next attempt suspends nothing."""
    no_java = world.job(raises(MissingEnvironmentError("no Java")), suspend_on_failure=True)
    with pytest.raises(MissingEnvironmentError):
        result_of(no_java)
    record = world.ended()
    assert (record.status, record.cause) == (JobStatus.SUSPENDED, StopCause.ERROR)
    assert record.failure == "no Java" and record.lease is None
    world.spark_starts.clear()
    lost = world.job(
        raises(ExecutorLostError("the JVM is gone")),
        suspend_on_failure=True,
        restart_attempts_max=0,
    )
    with pytest.raises(ExecutorLostError):
        result_of(lost)
    assert len(world.spark_starts) == 1, "a start resumes it"
    assert (world.ended().status, world.ended().cause) == (JobStatus.NOT_RUNNING, StopCause.GAVE_UP)


def test_starts_that_fail_until_the_job_gives_up_say_so_too(world: World) -> None:
    with pytest.raises(ExecutorLostError):
        result_of(world.job(raises(ExecutorLostError("the JVM is gone"))))
    record = world.ended()
    assert (record.status, record.cause) == (JobStatus.NOT_RUNNING, StopCause.GAVE_UP)
    assert record.failure == "gave up after 3 failed executions: the JVM is gone"
    assert record.lease is None


def test_failures_that_are_far_apart_end_the_job_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the executions brings the job on: each takes two minutes to fail."""
    clock = iter(range(0, 10_000, 130))
    monkeypatch.setattr(restarts, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(restarts, "_PAUSE_MAX_MS", 20)
    with pytest.raises(ExecutorLostError):
        result_of(world.job(raises(ExecutorLostError("the JVM is gone")), restart_attempts_max=5))
    assert world.ended().cause is StopCause.GAVE_UP and len(world.spark_starts) == 6
    begun = [record.fruitless for record in world.spark_starts if record is not None]
    assert begun == [0, 1, 2, 3, 4, 5], "as the checks see it"


@pytest.mark.parametrize("error", [ExecutorLostError, MissingEnvironmentError])
def test_a_cancel_while_it_starts_stays_a_cancel(world: World, error: type[JetError]) -> None:
    """Whether the start would have been repeated or not, and whatever it failed of."""
    result = result_of(world.job(cancelled_while(error("of something else"))))
    assert result.status is JobStatus.FAILED
    assert len(world.spark_starts) == 1, "nothing is begun again"
    record = world.ended()
    assert (record.status, record.cause) == (JobStatus.FAILED, StopCause.CANCEL)
    assert record.lease is None


def test_a_cancel_that_cannot_be_written_is_said_again(world: World) -> None:
    def spark(job: PipelineJob) -> None:
        if len(world.spark_starts) == 1:
            job.request_stop(StopKind.CANCEL)
            world.members_are_away()
        raise ExecutorLostError("the JVM is gone")

    assert result_of(world.job(spark)).status is JobStatus.FAILED
    assert world.ended().cause is StopCause.CANCEL


def test_an_initial_snapshot_that_was_applied_before_is_said_once(world: World) -> None:
    """The run that asks for it again says so, its restarts do not."""
    ref = SnapshotRef(5, 5, 1, "m5", 0, 0, 0, committed=True)
    owner = RecordKeeper(world.store, "j", 1_000, run_id="run-0")
    owner.release(owner.claim(change=lambda one: replace(one, snapshots=(ref,)).rewound(5)))
    with pytest.raises(ExecutorLostError):
        result_of(world.job(raises(ExecutorLostError("the JVM is gone")), initial_snapshot=5))
    assert len(world.spark_starts) == 3
    said = [event for event in world.events if isinstance(event, InitialSnapshotSkipped)]
    assert said == [InitialSnapshotSkipped("j", 5, applied_by=1, continues_from=5)]


def test_a_shutdown_in_a_pause_between_executions_is_in_the_record(world: World) -> None:
    """No process is left, and none is said to be; nor is Spark started for that."""
    job = world.job(raises(ExecutorLostError("the JVM is gone")))
    world.on_restarting = lambda: job.request_stop(StopKind.SHUTDOWN)
    assert result_of(job).status is JobStatus.NOT_RUNNING
    assert len(world.spark_starts) == 1
    record = world.ended()
    assert (record.status, record.cause) == (JobStatus.NOT_RUNNING, StopCause.SHUTDOWN)
    assert record.lease is None


def test_a_shutdown_while_a_dead_owners_lease_is_waited_for_needs_no_spark(world: World) -> None:
    owner = RecordKeeper(world.store, "j", 1_000, run_id="run-0")
    left = owner.claim(change=None)
    owner.abandon()
    assert left.lease is not None
    elsewhere = replace(left, lease=replace(left.lease, host="elsewhere"))
    world.store.register(record_register("j")).claim(2, "o").write(elsewhere.to_bytes())
    job = world.job(raises(MissingEnvironmentError("no Java")))
    job.start()
    job.request_stop(StopKind.SHUTDOWN)
    assert job.result(30).status is JobStatus.NOT_RUNNING
    assert world.spark_starts == [] and world.ended().cause is StopCause.SHUTDOWN


def test_what_a_deleted_job_was_asked_for_is_not_for_the_next_of_its_name(world: World) -> None:
    no_java = raises(MissingEnvironmentError("no Java"))
    with pytest.raises(MissingEnvironmentError):
        result_of(world.job(no_java))
    requests.request(world.store, "j", StopKind.CANCEL, world.ended().execution_id)
    delete_job(world.store, "j")
    with pytest.raises(MissingEnvironmentError):
        result_of(world.job(no_java))
    assert len(world.spark_starts) == 2 and world.ended().cause is StopCause.ERROR


def test_what_was_asked_for_before_does_not_hurry_the_next_start(world: World) -> None:
    """A pause lets a store come back; only something new cuts it short."""
    began: list[float] = []

    def spark(job: PipelineJob) -> None:
        began.append(time.monotonic())
        job.request_stop(StopKind.SUSPEND)
        raise ExecutorLostError("the JVM is gone")

    with pytest.raises(ExecutorLostError):
        result_of(world.job(spark))
    assert began[2] - began[1] >= 0.9, "the second pause is a second"


def test_a_process_in_a_pause_between_executions_is_seen_to_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: whoever watched the lease took the job over, and the process was fenced."""
    monkeypatch.setattr(restarts, "_PAUSE_FIRST_MS", 5_000)
    url, watch, seen = f"file://{tmp_path}/a", LeaseWatch(), []
    with Store.open(StoreConfig((url,), backup_count=0, lease_ttl="2 seconds")) as store:
        world = World(tmp_path, store)
        job = world.job(raises(ExecutorLostError("the JVM is gone")), restart_attempts_max=1)
        job.start()
        while not job.done.wait(0.1):
            record = world.record()
            if record is not None and record.status.is_live:
                seen.append(watch.sees(record))
        with pytest.raises(ExecutorLostError):
            job.result(0)
        assert len(seen) > 10 and False not in seen
        record = world.ended()
        assert (record.cause, record.lease) == (StopCause.GAVE_UP, None)
        assert len(world.spark_starts) == 2 and "jet-heartbeat-j" not in alive(within_s=10)


def alive(within_s: float) -> set[str]:
    """Threads after the heartbeats that are to end have ended, or the time is over."""
    for thread in threading.enumerate():
        if thread.name.startswith("jet-heartbeat-j"):
            thread.join(within_s)
    return {thread.name for thread in threading.enumerate()}


class Lost:
    """An execution that loses executors, after a decided snapshot or before any."""

    epochs, undecided, left_undecided, shard_count, running_ms = 1, None, False, 1, 20_000
    failure: JetError | None = ExecutorsGoneError("the executors host:1 are lost")

    def __init__(self, record: ExecutionRecord, stop: Stop, *, has_decided: bool) -> None:
        self.record, self.has_decided, self._stop = record, has_decided, stop

    def run(self) -> Stop:
        return self._stop

    def stages(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("has_decided", [True, False], ids=["gets on", "gets nowhere"])
def test_executors_may_be_lost_as_often_as_the_job_gets_on_between(
    world: World, monkeypatch: pytest.MonkeyPatch, *, has_decided: bool
) -> None:
    left = 4
    again = Stop(JobStatus.NOT_RUNNING, StopCause.ERROR, "are lost", restart=True)
    last = Stop(JobStatus.COMPLETED, StopCause.COMPLETE, "the input is over", write_status=True)

    def wire(_: Order, session: object, keeper: object, claimed: ExecutionRecord, *__: Any) -> Lost:
        nonlocal left
        left -= 1
        return Lost(claimed, again if left else last, has_decided=has_decided)

    monkeypatch.setattr(wiring, "wire", wire)
    job = world.job(lambda _: None, restart_attempts_max=1)
    monkeypatch.setattr(job._driver, "_open_session", lambda: None)
    if has_decided:
        assert result_of(job).status is JobStatus.COMPLETED
        pauses = {e.delay_ms for e in world.events if isinstance(e, ExecutionRestarting)}
        assert left == 0 and pauses == {0}
    else:
        with pytest.raises(ExecutorLostError):
            result_of(job)
        assert left == 2 and world.ended().cause is StopCause.GAVE_UP


AGAIN = Stop(JobStatus.NOT_RUNNING, StopCause.ERROR, "are lost", restart=True)
SUSPENDED = Stop(JobStatus.SUSPENDED, StopCause.SUSPEND, "as requested", write_status=True)


def job_that_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, *stops: Stop
) -> tuple[PipelineJob, list[float]]:
    """Returns a job whose executions end so, and the time that each is given, of 30 s."""
    given_s: list[float] = []

    def wire(
        order: Order, session: object, keeper: object, claimed: ExecutionRecord, *__: Any
    ) -> Lost:
        stop = stops[len(given_s)]
        given_s.append(order.until.duration_s or 0.0)
        execution = Lost(claimed, stop, has_decided=True)
        execution.failure = None if stop is SUSPENDED else Lost.failure
        return execution

    monkeypatch.setattr(wiring, "wire", wire)
    job = world.job(lambda _: None, until=Until(input_ends=False, stop=None, duration_s=30.0))
    monkeypatch.setattr(job._driver, "_open_session", lambda: None)
    return job, given_s


def test_a_restart_does_not_begin_the_time_of_a_run_anew_but_a_resume_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, given_s = job_that_ends(world, monkeypatch, AGAIN, AGAIN, SUSPENDED, AGAIN, SUSPENDED)
    result_of(job)
    assert given_s[0] == 30 and 10 >= given_s[1] > given_s[2]
    job.resume()
    job.result(60)
    assert given_s[3] == 30 and given_s[4] <= 10


def test_a_failure_after_a_resume_is_unread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Stop(JobStatus.FAILED, StopCause.ERROR, "broken", write_status=True)
    job, _ = job_that_ends(world, monkeypatch, SUSPENDED, broken)
    result_of(job)
    job.resume()
    assert job.done.wait(60)
    assert "has failed" in str(job.unread_failure())
