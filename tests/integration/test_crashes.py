"""The rest of protocol.md, section 5: calls that fail, drivers that sleep, and stops that do not.

The pipeline and the verdict are those of test_killed.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from dagster_jet import JobConfig
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.contract import CommitContext
from dagster_jet.errors import (
    ArtifactLostError,
    FencedError,
    JetError,
    SinkUnavailableError,
    SnapshotFailedError,
    StoreUnavailableError,
)
from dagster_jet.execution import dispatch, epoch_driver, retrying
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionRestarting,
    ExecutionStarted,
    JobEvent,
    SnapshotCommitted,
    SnapshotFailed,
)
from dagster_jet.execution.loop import Loop
from dagster_jet.execution.signals import Signals
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.ownership.record_keeper import RecordKeeper, read_record
from dagster_jet.snapshot.protocol import Complete, Purpose, StopKind, WriteOutcome
from dagster_jet.snapshot.record import Activity, Doing, ExecutionRecord, JobStatus, StopCause
from dagster_jet.system import failpoint
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long, long_but_for

from . import child, oracle
from .crash_table import (
    AFTER_DECISION,
    FAILING_CALLS,
    FAILING_IN_RECOVERY,
    FAILING_IN_TASKS,
    Crash,
    points_wanted_by,
)
from .world import OUTPUTS, World, is_stopped, wait_until

if TYPE_CHECKING:
    from pyspark import StatusTracker


# --- failing calls --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "crash",
    long_but_for(FAILING_CALLS, "F8"),
    ids=str,
)
def test_failing_call(world: World, crash: Crash) -> None:
    world.fill()
    failpoint.configure(crash.rules)
    assert world.run().status is JobStatus.COMPLETED
    assert crash.points <= set(world.fail_points.reached)
    world.assert_exactly_once()
    if crash.row in ("F4", "F10", "S8"):
        assert world.events_of(ExecutionRestarting) == [], "the job should have lived on"


@pytest.mark.parametrize("crash", long_but_for(FAILING_IN_TASKS, "F3-files"), ids=str)
def test_failing_call_in_a_task(
    world: World, crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    if crash.sharded:
        monkeypatch.setattr(epoch_driver, "FEW_GROUPS", -1)
    world.fill()
    with world.rules_in_workers(crash.rules):
        assert world.run().status is JobStatus.COMPLETED
    assert crash.points <= set(world.fail_points.reached)
    world.assert_exactly_once()


@pytest.mark.parametrize(
    "point",
    long_but_for(FAILING_IN_RECOVERY, "abort.after"),
)
def test_failing_call_in_recovery(world: World, point: str) -> None:
    world.fill(files=3)
    world.run(until="drained")
    world.fill(files=3, first=3)
    failpoint.configure(f"{point}:1=raise")
    with world.rules_in_workers(f"{point}:1=raise"):
        assert world.run().status is JobStatus.COMPLETED
    assert point in world.fail_points.reached
    world.assert_exactly_once()


def test_f4_chunks_cannot_be_written(world: World) -> None:
    """The snapshot fails, the job lives, the next snapshot succeeds."""
    world.fill()
    failpoint.configure("chunks.before:3=raise")
    world.run()
    failures = world.events_of(SnapshotFailed)
    assert ["chunks.before" in failure.reason for failure in failures] == [True]
    later = [e for e in world.events_of(SnapshotCommitted) if e.failed_snapshots == 1]
    assert later, "no snapshot after the failed one"
    assert world.events_of(ExecutionRestarting) == []
    world.assert_exactly_once()


def test_f4_a_worker_that_saves_beside_the_next_epoch_cannot(world: World) -> None:
    """Its task is over: the snapshot fails, the job lives, the next snapshot has it all."""
    world.fill(files=8)
    with world.rules_in_workers("chunks.before:5=raise"):
        assert world.run().restarts == 0
    failures = [failure.reason for failure in world.events_of(SnapshotFailed)]
    assert failures and all("chunks.before" in reason for reason in failures)
    world.assert_exactly_once()


@pytest.mark.parametrize("moment", [pytest.param("before", marks=long), "after"])
def test_f7_outcome_of_the_decision_unknown(world: World, moment: str) -> None:
    """Neither committed nor cleaned up: the restart goes by what the record says."""
    world.fill()
    failpoint.configure(f"record.snapshot.{moment}:3=raise")
    result = world.run()
    assert result.restarts == 1
    [restarting] = world.events_of(ExecutionRestarting)
    assert "unknown" in restarting.reason
    _, second = world.events_of(ExecutionStarted)
    assert second.restored_snapshot_id is not None
    world.assert_exactly_once()


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(one, marks=[] if one is WriteOutcome.WRITTEN else long, id=one.name.lower())
        for one in WriteOutcome
    ],
)
def test_a_decision_that_comes_after_the_epoch_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch, outcome: WriteOutcome
) -> None:
    """Its runs were given to that epoch as undecided; now they are saved, or are not."""
    world.fill()
    write, late = RecordKeeper.write, []

    def write_late(self: RecordKeeper, record: ExecutionRecord, purpose: Purpose) -> WriteOutcome:
        if late or purpose is not Purpose.SNAPSHOT or record.snapshots[0].epoch_id == 0:
            return write(self, record, purpose)
        late.append(record.snapshots[0].epoch_id)
        wait_until(
            lambda: any(e.epoch_id > late[0] for e in world.events_of(EpochCompleted)),
            "an epoch runs beside the decision",
        )
        if outcome is WriteOutcome.WRITTEN:
            return write(self, record, purpose)
        if outcome is WriteOutcome.FENCED:
            self.fenced.set()
        elif outcome is WriteOutcome.UNKNOWN:
            write(self, record, purpose)
        return outcome

    monkeypatch.setattr(RecordKeeper, "write", write_late)
    if outcome is WriteOutcome.FENCED:
        with pytest.raises(FencedError):
            world.run()
        assert world.run().status is JobStatus.COMPLETED
    else:
        assert world.run().restarts == (outcome is WriteOutcome.UNKNOWN)
    assert late
    assert len(world.events_of(SnapshotFailed)) == (outcome is WriteOutcome.UNAVAILABLE)
    world.assert_exactly_once()


def test_f10_a_commit_that_throws_is_retried_and_told(world: World) -> None:
    world.fill()
    failpoint.configure("files.commit.file:3=raise")
    world.run()
    assert any("files.commit.file" in e.reason for e in world.events_of(SnapshotFailed))
    assert world.events_of(ExecutionRestarting) == []
    world.assert_exactly_once()


class Interrupt(BaseException):
    """Unexpected exception on the driver's thread."""


@long  # test_decided_is_completed.py cancels beside a commit
@pytest.mark.parametrize("how", ["interrupted", "cancelled"])
def test_f10_a_commit_that_is_given_up_is_the_next_starts(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """However the driver leaves beside it: what was given up is not taken for committed."""
    world.fill()
    tries: list[str] = []
    said: list[Activity] = []
    commit, go_on = FilesSink.commit, Loop._perhaps_look
    report = Signals.report_retried

    def refuse(self: FilesSink, artifacts: Any, context: CommitContext) -> None:
        if context.sink != "rollup_out":
            return commit(self, artifacts, context)
        tries.append(context.sink)
        raise SinkUnavailableError("the share does not answer.")

    def leave(self: Loop) -> None:
        if len(tries) >= 2:
            if how == "interrupted":
                raise Interrupt
            self._stop.request(StopKind.CANCEL)
        go_on(self)

    def cancel(self: Any, reason: str) -> None:
        report(self, reason)
        said.append(self.owner.activity_tracker.activity())
        self.stop.request(StopKind.CANCEL)

    # Each end waits so long for the commit before it gives up.
    monkeypatch.setattr(retrying, "_LAST_PATIENCE_S", 1.0)
    monkeypatch.setattr(dispatch, "_GRACE_S", 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(FilesSink, "commit", refuse)
        with monkeypatch.context() as driver:
            driver.setattr(Loop, "_perhaps_look", leave)
            with pytest.raises(Interrupt) if how == "interrupted" else suppress(JetError):
                world.run()
        # The next start is cancelled while it commits in vain: no failure, and no other execution.
        patched.setattr(Signals, "report_retried", cancel)
        assert world.run().status is JobStatus.FAILED
        assert world.record().cause is StopCause.CANCEL
        assert said[0].doing is Doing.COMMITTING and "share does not answer" in said[0].error
    assert world.staged() and not world.record().snapshots[0].committed
    world.run()
    world.assert_exactly_once()
    assert world.staged() == []


def test_an_error_that_nobody_expects_ends_the_job_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill()

    def raises(event: Any) -> None:
        if isinstance(event, EpochCompleted) and event.epoch_id == 3:
            raise RuntimeError("the callback's own")

    with world.jet() as jet:
        with pytest.raises(JetError, match="the driver raised RuntimeError: the callback's own"):
            jet.run(child.crash_pipeline(world.folder), JobConfig(**child.CONFIG), on_event=raises)
        record = read_record(jet.store, child.JOB)
    assert record is not None and record.status is JobStatus.FAILED
    world.run()
    world.assert_exactly_once()


# --- F12: the resource lost what was promised -----------------------------------------------------


def test_f12_a_staged_file_is_gone(world: World) -> None:
    world.fill()
    world.run_child(AFTER_DECISION)
    lost = max(world.staged(), key=lambda p: (p.parent.name == "big_out", p.stat().st_size))
    rows = Counter(oracle.rows_of(lost, OUTPUTS["big"]))
    lost.unlink()
    with pytest.raises(ArtifactLostError) as told:
        world.run()
    for part in ("big_out", "epoch", str(lost), "accept_loss=True"):
        assert part in str(told.value)
    with world.jet() as jet:
        record = read_record(jet.store, child.JOB)
    assert record is not None and record.status is JobStatus.FAILED
    assert record.failure is not None and "accept_loss" in record.failure
    with pytest.raises(ArtifactLostError):
        world.run()  # never silent, also not the second time

    result = world.run(accept_loss=True)
    assert result.status is JobStatus.COMPLETED
    found, expected = world.committed(), world.expected()
    assert expected["big"] - found["big"] == rows and not found["big"] - expected["big"]
    assert (found["counts"], found["rollup"]) == (expected["counts"], expected["rollup"])


# --- F16, F17: two executions at once -------------------------------------------------------------


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("epoch.acked:3", marks=long),
        "record.snapshot.before:3",
        pytest.param("files.commit.file:3", marks=long),
        pytest.param("commit.after:2", marks=long),
    ],
)
def test_f16_a_sleeping_driver_wakes_up_too_late(world: World, point: str) -> None:
    """SIGSTOP, a second driver takes over and completes, SIGCONT: the first changes nothing."""
    world.fill()
    with world.asleep(point):
        assert world.run().status is JobStatus.COMPLETED
        world.assert_exactly_once()
        with world.jet() as jet:
            record = read_record(jet.store, child.JOB)
        visible = world.visible()
    assert "ended by FencedError" in world.child_output.read_text("utf-8")
    with world.jet() as jet:
        assert read_record(jet.store, child.JOB) == record
    assert world.visible() == visible


def test_f17_a_task_of_a_dead_driver_prepares_too_late(world: World) -> None:
    """The task's driver was killed and replaced while the task slept: rows staged by it stay
    invisible."""
    world.fill()
    seen = len(world.fail_points.frozen)
    asleep = lambda: world.fail_points.frozen[seen:]  # noqa: E731
    driver = world.start_child("files.prepare.before:2=freeze")
    try:
        wait_until(lambda: bool(asleep()), "a task sleeps")
        late = asleep()[0]
        wait_until(lambda: is_stopped(late), "the task's process is stopped")
        assert late != driver.pid
    finally:
        driver.kill()
        driver.join()
    try:
        tracker = world.spark.sparkContext.statusTracker()
        # Two sleepers would keep both of Spark's cores from the successor; and one that wakes up
        # when the successor has swept their state fails their job, which ends the other too.
        with repeating(lambda: [wake(pid) for pid in asleep() if pid != late]):
            wait_until(lambda: is_alone(tracker), "the other tasks have ended")
            world.run(until="drained")
        record, visible = world.record(), world.visible()
        assert visible, "the successor has committed"
        assert is_stopped(late) and tracker.getActiveJobsIds()
    finally:
        wake(late)
    wait_until(lambda: not tracker.getActiveJobsIds(), "the dead driver's epoch ends")
    assert (world.record(), world.visible()) == (record, visible)
    world.fill(files=2, first=6)
    world.run()
    world.assert_exactly_once()
    assert world.staged() == [], "what nobody names was removed at the next start"


def is_alone(tracker: StatusTracker) -> bool:
    """Whether one task runs, and no other has followed it for a while."""

    def running() -> int:
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    for _ in range(20):
        if running() != 1:
            return False
        time.sleep(0.02)
    return True


def wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def repeating(work: Callable[[], object]) -> Iterator[None]:
    """Do something again and again on a thread beside the body."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(0.05):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@long  # the late task is above
def test_f17_phase_2_of_a_dead_execution_ends_too_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead execution commits an epoch that its successor has committed already, and nobody
    waits for it."""
    world.fill()
    hangs, asleep, ended, go_on = (threading.Event() for _ in range(4))
    carry_out, commit, fail_point = (
        SnapshotDriver.carry_out,
        FilesSink.commit,
        failpoint.fail_point,
    )
    late: list[threading.Thread] = []

    def note_what_is_committed(self: SnapshotDriver, command: Any, view: Any) -> Any:
        if isinstance(command, Complete):
            if any(artifact.sink == "rollup_out" for artifact in command.manifest.artifacts):
                hangs.set()
        return carry_out(self, command, view)

    def commit_late(self: FilesSink, artifacts: Any, context: CommitContext) -> None:
        if context.sink == "rollup_out" and not asleep.is_set():
            late.append(threading.current_thread())
            asleep.set()
            assert go_on.wait(60)
        commit(self, artifacts, context)

    def end_the_execution_beside_it(name: str) -> None:
        if name == "epoch.acked" and hangs.is_set() and not ended.is_set():
            assert asleep.wait(60)
            ended.set()
            raise failpoint.FailPointError("the epoch beside the late phase 2")
        fail_point(name)

    monkeypatch.setattr(SnapshotDriver, "carry_out", note_what_is_committed)
    monkeypatch.setattr(FilesSink, "commit", commit_late)
    monkeypatch.setattr(epoch_driver, "fail_point", end_the_execution_beside_it)
    monkeypatch.setattr(dispatch, "_GRACE_S", 0.2)
    assert world.run(until="drained").restarts == 1
    record, visible = world.record(), world.visible()
    assert asleep.is_set() and late[0].is_alive()
    go_on.set()
    late[0].join(30)
    assert not late[0].is_alive()
    assert (world.record(), world.visible()) == (record, visible)
    world.run()
    world.assert_exactly_once()


# --- F18: more members lost than backups ----------------------------------------------------------


def test_f18_more_members_lost_than_backups(world: World) -> None:
    world.fill(files=3)
    members = "abcde"
    world.run(until="drained", members=members)
    before = world.visible()
    for member in members[:2]:
        world.lose_member(member)
    world.fill(files=3, first=3)
    with world.jet(members) as jet:
        record, replicas = read_record(jet.store, child.JOB), jet.store.table.replicas
        gone = {f"file://{world.folder}/store/{member}" for member in members[:2]}
        lost = [partition for partition, held in enumerate(replicas) if set(held) <= gone]
        with pytest.raises(StoreUnavailableError) as told:
            jet.run(
                child.crash_pipeline(world.folder),
                JobConfig(**child.CONFIG, restart_attempts_max=0),
            )
        assert read_record(jet.store, child.JOB) == record, "a refused job has claimed the record"
    assert lost and f"partitions {lost}" in str(told.value)
    assert world.visible() == before, "a refused job has written output"
    for member in members[:2]:
        world.bring_member_back(member)
    world.run(members=members)
    world.assert_exactly_once()


# --- F20, F21: asked to stop ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        (ExecutionStarted, StopKind.SHUTDOWN),
        pytest.param(EpochCompleted, StopKind.SHUTDOWN, marks=long),
        pytest.param(SnapshotCommitted, StopKind.SHUTDOWN, marks=long),
        (EpochCompleted, StopKind.SUSPEND),
        # The kind is a word of the record that is decided.
        pytest.param(ExecutionStarted, StopKind.SUSPEND, marks=long),
        pytest.param(SnapshotCommitted, StopKind.SUSPEND, marks=long),
    ],
)
def test_f20_asked_to_stop(world: World, kind: StopKind, moment: type[JobEvent]) -> None:
    """A terminal snapshot; nothing is processed after it, nothing of it is lost."""
    world.fill()
    with world.jet() as jet:
        job = jet.submit(
            child.crash_pipeline(world.folder),
            JobConfig(**child.CONFIG),
            on_event=lambda event: job.request_stop(kind) if isinstance(event, moment) else None,
        )
        result = job.result(60)
        record = read_record(jet.store, child.JOB)
    assert record is not None and record.lease is None and record.snapshot is not None
    stopped = {StopKind.SHUTDOWN: JobStatus.NOT_RUNNING, StopKind.SUSPEND: JobStatus.SUSPENDED}
    assert result.status is record.status is stopped[kind]
    assert record.snapshot.committed
    assert world.staged() == []
    world.assert_nothing_doubled()
    assert world.run().restarts == 0
    world.assert_exactly_once()


def test_f21_the_terminal_snapshot_fails(world: World) -> None:
    """The job stops anyway and resumes from the snapshot before."""
    world.fill()
    seen: list[JobEvent] = []
    with world.jet() as jet:

        def stop_with_a_broken_store(event: JobEvent) -> None:
            seen.append(event)
            if isinstance(event, EpochCompleted) and event.epoch_id == 3:
                failpoint.configure("manifest.before:1=raise")
                job.request_stop(StopKind.SHUTDOWN)

        job = jet.submit(
            child.crash_pipeline(world.folder),
            JobConfig(**{**child.CONFIG, "snapshot_interval": "1 hour"}),
            on_event=stop_with_a_broken_store,
        )
        result = job.result(60)
    assert any(isinstance(event, SnapshotFailed) for event in seen)
    assert result.status is JobStatus.NOT_RUNNING
    assert world.visible_rows() == 0, "nothing was decided, so nothing may be visible"
    world.run()
    world.assert_exactly_once()


@long  # the terminal snapshot fails above
def test_f21_a_run_that_could_not_finish_draining_says_so(world: World) -> None:
    """Nobody asked it to stop, so "stopped" would be taken for "everything is committed"."""
    world.fill()

    def break_the_store(event: JobEvent) -> None:
        if isinstance(event, EpochCompleted) and event.epoch_id == 1:
            failpoint.configure("manifest.before:1=raise")

    with world.jet() as jet, pytest.raises(SnapshotFailedError, match=r"manifest\.before"):
        jet.run(
            child.crash_pipeline(world.folder),
            JobConfig(**{**child.CONFIG, "snapshot_interval": "1 hour"}),
            until="drained",
            on_event=break_the_store,
        )
    assert world.visible_rows() == 0
    world.run()
    world.assert_exactly_once()


def test_every_point_of_these_was_reached(
    request: pytest.FixtureRequest, fail_points: FailPoints
) -> None:
    """The last one here: a renamed step must not turn a crash into a quiet run."""
    wanted = points_wanted_by(request)
    assert wanted <= set(fail_points.reached), wanted - set(fail_points.reached)
