"""One execution in the simulated world: the engine's own loop, over fake I/O.

`Loop`, `Coordinator`, `EpochPlanner`, `SnapshotDriver`, `SinkCommitter` and `SourceJournals` are
the engine's. Fakes are recovery's reading, Spark's epochs, the sources, the record's register, the
store's map and the places that sinks write to. Answers of epochs and of phase 2 may come twice,
late, or to the execution after; those of other commands once, to who gave them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import JetError
from dagster_jet.execution.commit_reports import CommitReports
from dagster_jet.execution.epoch_planner import Inputs, PollRequest, StageTime
from dagster_jet.execution.notifications import Emitted, Notification, Polled, Woken
from dagster_jet.execution.retrying import Retrying
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.execution.stopping import StopSignal, Until
from dagster_jet.execution.undecided_input import UndecidedInput
from dagster_jet.exports.exporting import Exporting
from dagster_jet.snapshot import protocol as c
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.epoch_cycle import CycleState
from dagster_jet.snapshot.manifest import Ack, Manifest
from dagster_jet.snapshot.owed import SinkChange, owed_commits
from dagster_jet.snapshot.pending_snapshot import PendingState
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause
from dagster_jet.start_options import StartOptions

from . import committing, recovery
from .chunks import Delta
from .epoch import Epoch
from .fibers import Never, Waiting, Worker
from .journal import AtOnce, JournalStore, Reader
from .oracle import Violation
from .promises import Token
from .scenario import JOB, SOURCE, WINDOW, Point
from .writer import HEARTBEAT_MS, RecordWriter

if TYPE_CHECKING:
    from .world import Process, World

POLL_MS = 15
MOST_EPOCHS_AFTER_A_STOP = 3


class Driver:
    """Replaces the engine's `Dispatch` and `Announcer` for the loop."""

    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process
        self.deployment = process.deployment
        self.config = world.scenario.config(world.rng, self.deployment)
        self.execution_id = 0
        self.runs: dict[str, Delta] = {}
        """The executors' local files of this execution."""
        self.saved: dict[str, Ack] = {}
        """Acks of state that was saved beside its task."""
        self.position = [0] * len(world.scenario.rows)
        self.handed_out_max = world.queues.choice((None, None, None, 3, 9))
        """Most rows that a queue hands out without acknowledgement; None: no bound."""
        self.acknowledged = 0
        self.reached_ms = self.known_ms = 0
        """Event time of the window: the watermark of its last epoch, and the one known since."""
        self.was_ready = False
        self.stop = StopSignal()
        self.reader = Reader()
        self.journals = world.cast.journals(
            {SOURCE: self.reader},
            JournalStore(world),
            UndecidedInput(None, JOB),  # nobody takes input away here: it notes nothing
            _writer=AtOnce(),
            _noter=AtOnce(),
        )
        self.waiting = Waiting(world, process)
        self.writer = RecordWriter(world, process)
        self.planner = world.cast.planner(self._until(), POLL_MS, world.now_ms)
        self.exporting = Exporting()
        self.loop = world.cast.loop(
            world.cast.coordinator(self.config),
            self.planner,
            self,
            self.stop,
            self,
            lambda: world.now_ms,
            self.exporting,
        )
        self.snapshots = self._snapshot_driver()
        self._epoch_worker, self._snapshot_worker = Worker(self), Worker(self)
        self._ends_for: c.StopKind | None = None
        """Stop that was requested before the epoch began and that ends the execution."""
        self._is_cancelled = False
        self._running: c.RunEpoch | None = None
        self._timers = 0
        self.written: ExecutionRecord
        """Record as its keeper wrote it last; heartbeats repeat it."""
        self._ended = False
        self._has_failed_to_complete = False
        self._asked: c.StopKind | None = None
        self._epochs_since_asked = 0

    def _until(self) -> Until:
        if self.world.scenario.input_ends:
            return Until(input_ends=True, stop=c.StopKind.COMPLETE)
        return Until(input_ends=False, stop=None)

    def _snapshot_driver(self) -> SnapshotDriver:
        failures = committing.StrictFailures(JOB)
        self.fenced = committing.never_fenced()

        def one_by_one(works: Sequence[Callable[[], None]]) -> None:
            """In any order; where one sink fails, the engine's threads go on as well."""
            for work in self.world.rng.sample(works, len(works)):
                work()

        committer = self.world.cast.committer(
            JOB,
            committing.nodes(self),
            self.deployment.destinations,
            lambda destination: committing.reopened(self, destination),
            StartOptions(),
            lambda: self.record,
            Retrying(JOB, self.fenced, self.stop, lambda reason: None, ending=Never(self.waiting)),
            CommitReports(JOB, lambda: self.record, lambda event: None),
            run_all=one_by_one,
        )
        return self.world.cast.snapshots(
            self._write_and_wait,
            committing.Manifests(self),
            self.journals,
            committer,
            lambda stages, view: committing.commit_stages(self, stages, view),
            self._acknowledge,
            failures,
            lambda: self.world.now_ms,
            await_saved=lambda ack, closing: committing.await_saved(self, ack),
        )

    def _acknowledge(self, messages: Mapping[str, Mapping[str, int]]) -> None:
        self.acknowledged = max(self.acknowledged, messages.get(SOURCE, {}).get("rows", 0))

    def goes_on_from(self, position: list[int]) -> None:
        """Acknowledges the snapshot's rows before anything is read."""
        self.position, self.acknowledged = position, sum(position)

    def handed_out(self) -> int:
        """Number of rows that the source hands out now."""
        if self.handed_out_max is None:
            return 1_000
        return self.acknowledged + self.handed_out_max - sum(self.position)

    @property
    def record(self) -> ExecutionRecord:
        return self.loop.view.record or self.written

    def begin(self) -> None:
        self.loop.begin()

    def tell(self, what: str, thing: object = None) -> None:
        self.world.tell(f"{self.process.name}/{self.execution_id or '?'}", what, thing)

    @property
    def owns_the_job(self) -> bool:
        return self.execution_id == self.world.register.promised

    # --- into the loop --------------------------------------------------------------------------

    def answer(self, command: c.Command, event: c.Event) -> None:
        """The command is done; the loop hears of it some time later."""
        point = Point("after", type(command).__name__)
        if isinstance(command, c.WriteRecord):
            self.world.after(self.process, lambda: self._deliver(event))
            return
        self._deliver_later(point, event)
        if _may_come_twice(event) and self.world.chance("answer_twice"):
            self.world.seen["an answer came twice"] += 1
            self._deliver_later(point, event, late=self.world.rng.random() < 0.5)

    def _deliver_later(self, point: Point, event: c.Event, *, late: bool = False) -> None:
        is_late = late or self.world.chance("answer_late")
        late_ms = self.world.rng.randint(50, 800) if is_late else 0
        self.world.after(self.process, lambda: self._deliver(event), point, at_least=late_ms)

    def _deliver(self, event: c.Event) -> None:
        # Tasks and phase 2 outlive an execution that is restarted in the same process (F17).
        current = self.process.driver
        if current is None:
            return
        if current is not self:
            if not isinstance(event, c.EpochAcked | c.EpochFailed | c.Completed):
                return
            self.world.seen["an answer reached the next execution"] += 1
        current.receive(event)

    def receive(self, notification: Notification | None) -> None:
        if self._ended:
            return
        if notification is not None and not isinstance(notification, Polled | Woken):
            self.tell("<-", notification)
        if isinstance(notification, c.Failed):
            self._has_failed_to_complete |= notification.completing
        self._perhaps_ask_to_stop()
        self.exporting.wants_snapshot = self.world.exporters.random() < 0.1
        self.loop.receive(notification)
        self._timers += 1
        wait_ms, timer = self.loop.wait_ms(), self._timers
        if self.loop.ended is not None:
            self._end_with(self.loop.ended)
        elif wait_ms is not None:
            self.world.after(self.process, lambda: self._ring(timer), at_least=wait_ms)

    def _ring(self, timer: int) -> None:
        if timer == self._timers:
            self.receive(None)

    def _perhaps_ask_to_stop(self) -> None:
        """Perhaps asks for a stop of the job, at any moment; the input's end is no such request."""
        world, view = self.world, self.loop.view
        if view.cycle is CycleState.STOPPED:
            return
        if world.has_users and not self._is_cancelled:
            if world.users.random() < world.odds.cancelled:
                self._cancel(view)
                return
        drained = self.position == [len(rows) for rows in world.scenario.rows]
        if not world.scenario.input_ends and (drained or world.chance("completes_early")):
            self.stop.request(c.StopKind.COMPLETE)  # with what is there by now: all of it
            if self.stop.kind is c.StopKind.COMPLETE:
                self._asked = self.stop.kind
        elif self.stop.kind is None and view.is_ready and world.chance("stop_asked"):
            self._asked = world.scenario.draw_stop(world.rng)
            self.stop.request(self._asked)

    def _cancel(self, view: CoordinatorView) -> None:
        in_recovery = view.recovery.can_be_left
        self.world.seen["cancelled in recovery" if in_recovery else "cancelled"] += 1
        self.tell("is cancelled")
        self._asked = c.StopKind.CANCEL
        self.stop.request(self._asked)
        # Once the last epoch has been run a cancel comes too late to be seen in the end.
        self._is_cancelled = not (self._running is not None and self._running.final)
        if self._was_final:
            self._is_cancelled = False

    _was_final = False

    # --- what the loop starts -------------------------------------------------------------------

    def start(self, command: c.Command, view: CoordinatorView) -> None:
        self.tell("->", command)
        if isinstance(command, c.RunEpoch) and command.terminal and not command.final:
            self._ends_for = self.stop.kind
        match command:
            case c.Publish():
                carry_out = self.snapshots.carry_out
                self._epoch_worker.start(command, lambda: carry_out(command, view))
            case c.Decide() | c.Complete() | c.WriteRecord():
                if isinstance(command, c.Complete):
                    self._note_owed(command)
                self._snapshot_worker.start(command, lambda: self.carry_out(command, view))
            case _:
                point = Point("before", type(command).__name__)
                self.world.after(self.process, lambda: self._perform(command, view), point)

    def carry_out(self, command: c.Command, view: CoordinatorView) -> c.Event:
        return self.snapshots.carry_out(command, view)

    def _note_owed(self, command: c.Complete) -> None:
        artifacts, named = command.manifest.due, command.manifest.sinks
        for owed in owed_commits(artifacts, named, self.deployment.destinations):
            if owed.change is not SinkChange.KEPT:
                self.world.seen[f"owed to a sink that {owed.change.name.lower()}"] += 1

    def _perform(self, command: c.Command, view: CoordinatorView) -> None:
        match command:
            case c.Claim():
                self._claim()
            case c.LoadManifest():
                recovery.load(self, command)
            case c.ImportSnapshot():
                recovery.bring_in(self, command)
            case c.Restore():
                recovery.restore(self, command)
            case c.AbortOrphans():
                recovery.abort_orphans(self, command)
            case c.RunEpoch():
                self._run_epoch(command, view)
            case c.CollectGarbage(manifests, chunk_sets):
                keys = [(vertex, name) for vertex, names in chunk_sets.items() for name in names]
                self.world.chunks.delete(manifests, keys)
                self.world.after(self.process, lambda: None, Point("after", "CollectGarbage"))

    def poll(self, request: PollRequest) -> None:
        """Sources sometimes have not noticed yet that there is more."""

        def polled() -> None:
            now_ms, world = self.world.now_ms, self.world
            if world.rng.random() < 0.1:
                # By the clock, in a lull; or back, where a partition appears that is behind.
                self.known_ms = max(0, self.known_ms + world.rng.randint(-30, 20))
            ended = self.position == [len(rows) for rows in world.scenario.rows]
            sees_all = request.waits_for_all or world.scenario.input_ends
            is_held = not ended and self.handed_out() < 1
            # Of a queue a poll may bring nothing, and there is more.
            misses = self.handed_out_max is not None and world.queues.random() < 0.2
            waits = not ended and (sees_all or world.rng.random() < 0.8)
            waiting = frozenset({SOURCE} if waits and not is_held and not misses else ())
            backlog = frozenset({SOURCE} if not ended and sees_all and not waiting else ())
            if backlog:
                world.seen["a backlog was held" if is_held else "a poll missed a backlog"] += 1
            inputs = Inputs(request, now_ms, waiting, self.stage_times())
            is_held &= bool(backlog)
            self.receive(Polled(replace(inputs, backlog=backlog, is_held=is_held)))

        self.world.after(self.process, polled)

    def stage_times(self) -> dict[str, StageTime]:
        return {WINDOW: StageTime(self.reached_ms, self.known_ms)}

    def _run_epoch(self, command: c.RunEpoch, view: CoordinatorView) -> None:
        if command.snapshot_id is not None:
            self.world.oracle.on_attempt(
                command.snapshot_id, command.execution_id, command.epoch_id
            )
        set_back = [sink.name for sink in self.world.sinks.values() if sink.is_set_back]
        if set_back and self.owns_the_job:
            raise Violation(f"epoch {command.epoch_id} runs, and {set_back} were set back")
        if self._running is not None:
            raise Violation(f"epoch {command.epoch_id} runs beside {self._running.epoch_id}")
        self._running = command
        self._check_stops(command)
        self._was_final |= command.final
        Epoch(self, command, view).start()

    def _check_stops(self, command: c.RunEpoch) -> None:
        """Asked to stop, it may run one epoch beside a pending snapshot, and the terminal one."""
        if self._asked in (None, c.StopKind.COMPLETE):
            return
        self._epochs_since_asked += 1
        if self._epochs_since_asked > MOST_EPOCHS_AFTER_A_STOP:
            raise Violation(f"asked to {self._asked}, it runs epoch {command.epoch_id}")

    def epoch_ends(self, position: list[int], watermark_ms: int | None) -> None:
        """Ends the epoch on the driver's side, once the tasks have answered."""
        self.position = list(position)
        if self.config.guarantee is c.Guarantee.NONE:
            self.acknowledged = sum(position)  # no snapshot will
        self.reached_ms = watermark_ms or 0
        if self.reached_ms != FINAL_WATERMARK_MS:
            self.known_ms = max(self.known_ms, 10 * sum(position))

    # --- what recovery and epochs ask, for mutants to answer otherwise --------------------------

    def in_names(self, attempt: str) -> str:
        """Part of the names of runs, chunk sets and staged rows that identifies a task's
        attempt."""
        return attempt

    def may_roll_back(self, execution_id: int, named: set[str]) -> Callable[[str, int], bool]:
        """Returns whether the abort pass may remove a token, given the execution that staged it."""
        return lambda token, by: by < execution_id and token not in named

    def may_break(self, own: Token, by: Token) -> bool:
        """Returns whether a processor may roll back a transaction that no entry names, given its
        own token and the transaction's."""
        return by < own

    def is_older(self, execution_id: int) -> bool:
        """May what this one has written be deleted?"""
        return execution_id < self.execution_id

    lives_with_damage = True
    """Older retained snapshots that are damaged stop no start."""

    def delete_garbage(self, execution_id: int, keep: list[Manifest], damaged: set[int]) -> None:
        self.world.chunks.delete_older(self.is_older, keep, max(damaged, default=0))

    # --- the loop's observer --------------------------------------------------------------------

    def polls(self, view: CoordinatorView) -> None:
        self.was_ready = True

    def idles(self) -> None:
        pass

    def emit(self, event: Emitted) -> None:
        pass

    _pending = PendingState.NONE

    def heard(self, event: c.Event, commands: Sequence[c.Command], view: CoordinatorView) -> None:
        before, self._pending = self._pending, view.pending
        if not before.is_decided and view.pending.is_decided:
            if view.cycle is CycleState.IN_EPOCH:
                how = "decided" if view.is_pending else "given up"
                self.world.seen[f"a snapshot was {how} under a running epoch"] += 1
        if isinstance(event, c.EpochAcked | c.EpochFailed):
            self._note_end(event, view)
        if view.is_ready:
            self.was_ready = True

    def _note_end(self, event: c.EpochAcked | c.EpochFailed, view: CoordinatorView) -> None:
        running = self._running
        if running is None or running.epoch_id != event.epoch_id:
            return
        if event.execution_id != self.execution_id:
            return
        self._running = None
        if isinstance(event, c.EpochAcked):
            for ack in event.acks:
                for path in ack.obsolete:
                    self.runs.pop(path, None)

    # --- the record -----------------------------------------------------------------------------

    def _claim(self) -> None:
        ballot, found = self.world.register.claim()
        self.world.oracle.on_claim(ballot, self.deployment)
        self.execution_id = ballot
        record = found or ExecutionRecord(JOB, ballot, JobStatus.NOT_RUNNING)
        try:
            record.rewound(self.deployment.initial_snapshot)
        except JetError:
            self.world.seen["there was nothing to go back to any more"] += 1
            self._end(restart=False)
            return
        record = replace(
            record, execution_id=ballot, status=JobStatus.STARTING, lease=self.writer.lease()
        )

        def claimed(outcome: c.WriteOutcome) -> None:
            if outcome is c.WriteOutcome.WRITTEN:
                self.written = record
                in_two_phases = self.deployment.in_two_phases
                plan, sinks = self.deployment.plan, self.deployment.destinations
                self._deliver(c.Claimed(record, in_two_phases, plan, sinks))
                self.world.after(self.process, self._heartbeat, at_least=HEARTBEAT_MS)
            else:
                self._end(restart=False)

        self.writer.write("Claim", ballot, record, claimed)

    def _write_and_wait(self, record: ExecutionRecord, purpose: c.Purpose) -> c.WriteOutcome:
        """The engine's `RecordKeeper.write`, inside a fiber."""
        outcome: c.WriteOutcome = self.waiting.until(
            lambda resume: self._write_record(purpose, record, resume)
        )
        if outcome is c.WriteOutcome.WRITTEN:
            self.world.seen[f"written: {purpose.value}"] += 1
        return outcome

    def _write_record(
        self,
        purpose: c.Purpose,
        record: ExecutionRecord,
        done: Callable[[c.WriteOutcome], object],
    ) -> None:
        def written(outcome: c.WriteOutcome) -> None:
            if outcome is c.WriteOutcome.FENCED:
                self.fenced.set()
            elif outcome is c.WriteOutcome.WRITTEN:
                self.written = record
            elif outcome is c.WriteOutcome.UNKNOWN:
                lost = c.Failed("the outcome of a write of the record is unknown", True)
                self.world.after(self.process, lambda: self.receive(lost))
            done(outcome)

        lease = self.writer.lease()
        self.writer.write("WriteRecord", self.execution_id, record.with_lease(lease), written)

    def _heartbeat(self) -> None:
        if self._ended or self.loop.view.cycle is CycleState.STOPPED:
            return
        if self.world.chance("connector_fails"):
            self.world.seen["a connector failed at any moment"] += 1
            restartable = self.world.rng.random() < 0.5
            self._deliver(c.Failed("a connector's thread ended", restartable))
        if self.writer.is_idle and not self._ended:

            def renewed(outcome: c.WriteOutcome) -> None:
                if outcome is c.WriteOutcome.FENCED:
                    self._deliver(c.RecordAnswer(c.Purpose.LEASE, outcome, self.world.now_ms))

            self._write_record(c.Purpose.LEASE, self.written, renewed)
        self.world.after(self.process, self._heartbeat, at_least=HEARTBEAT_MS)

    # --- the end --------------------------------------------------------------------------------

    def _end_with(self, stop: c.Stop) -> None:
        asked = self._ends_for
        if asked and stop.restart and asked is not c.StopKind.RESTART:
            raise Violation(f"asked to {asked}, it begins again: {stop.reason}")
        if self._is_cancelled and (stop.restart or stop.cause not in _ENDS_OF_A_CANCEL):
            raise Violation(f"cancelled, it ends of something else: {stop.reason}")
        if stop.write_status and not self._has_failed_to_complete:
            newest = self.record.snapshot
            is_left = newest is not None and not newest.committed
            if is_left and self.deployment.initial_snapshot is None and self.was_ready:
                what = f"{stop.cause.value}, and snapshot {newest.snapshot_id} is not committed"
                raise Violation(f"{what}: {stop.reason}")
        if stop.cause is StopCause.ERROR and not stop.restart:
            self._failed_with(stop)
        if self._ended:
            return
        self.tell("->", stop)
        self._ended = True
        self.snapshots.give_up()
        point = Point("before", "Stop")
        self.world.after(self.process, lambda: self._write_end(stop), point)

    def _failed_with(self, stop: c.Stop) -> None:
        """Checks the status of a failed job, which waits for a person who is to read the error."""
        suspends = self.world.scenario.suspend_on_failure
        status = JobStatus.SUSPENDED if suspends else JobStatus.FAILED
        if stop.status is not status or not stop.write_status:
            raise Violation(f"failed, it is {stop.status}, not {status}: {stop.reason}")
        self.world.seen[f"a failure: {status.value}"] += 1

    def _write_end(self, stop: c.Stop) -> None:
        if not stop.write_status:
            self._leave(stop.restart)
            return
        record = replace(self.record, status=stop.status, cause=stop.cause, failure=stop.reason)

        def noted(outcome: c.WriteOutcome) -> None:
            self._leave(stop.restart and outcome is not c.WriteOutcome.FENCED)

        self.writer.write("Stop", self.execution_id, record.with_lease(None), noted)

    def _end(self, restart: bool) -> None:
        if not self._ended:
            self._ended = True
            self._leave(restart)

    def _leave(self, restart: bool) -> None:
        self.writer.close()
        self.tell("ends" + (", another execution begins in this process" if restart else ""))
        if restart:
            self.world.begin_execution(self.process)
        else:
            self.world.end_process(self.process)


_ENDS_OF_A_CANCEL = (StopCause.CANCEL, StopCause.FENCED, StopCause.UNDECIDED)


def _may_come_twice(event: c.Event) -> bool:
    """Answers of other threads; reads, record writes and the map are calls that return once."""
    return isinstance(event, c.EpochAcked | c.EpochFailed | c.Completed | c.Published)
