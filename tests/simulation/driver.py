"""Carries out a coordinator's commands in the simulated world: one driver per execution.

It owes the coordinator what the engine owes it: one record write at a time, in the order of the
commands; heartbeats that repeat the newest record and never overtake a write; answers to commands
that carry no execution id reach only the execution that gave the command. Epochs and phase 2 run
beside it, and so does an epoch beside the decision about the one before; their answers may come
twice, late, or to the execution after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dagster_jet.engine.undecided_input import UndecidedInput
from dagster_jet.errors import JetError
from dagster_jet.snapshot import coordinator as c
from dagster_jet.snapshot.manifest import Ack, Artifact, Manifest
from dagster_jet.snapshot.owed import OwedCommit, SinkFate, owed_commits
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

from . import recovery
from .chunks import Delta
from .deployment import SEALED
from .epoch import Epoch
from .journal import AtOnce, JournalStore, Reader
from .oracle import Violation
from .promises import Token, kept_by
from .scenario import JOB, SOURCE, Point
from .sinks import ArtifactGone
from .writer import HEARTBEAT_MS, RecordWriter

if TYPE_CHECKING:
    from .world import Process, World


class Driver:
    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process
        self.deployment = process.deployment
        self.config = world.scenario.config(world.rng, self.deployment)
        self.coordinator = world.cast.coordinator(self.config)
        self.execution_id = 0
        self.runs: dict[str, Delta] = {}
        """The executors' local files of this execution."""
        self.saved: dict[str, Ack] = {}
        """What became of state that was saved beside its task."""
        self.position = [0] * len(world.scenario.rows)
        self.reader = Reader()
        self.journals = world.cast.journals(
            {SOURCE: self.reader},
            JournalStore(world),
            UndecidedInput(None, JOB),  # nobody takes input away here: it notes nothing
            _writer=AtOnce(),
            _noter=AtOnce(),
        )
        self.was_ready = False
        self._stop_asked: c.StopKind | None = None
        self._is_stopping = False
        self._is_cancelled = False
        self._running: c.RunEpoch | None = None
        self._poll_scheduled = False
        self._ended = False
        self.writer = RecordWriter(world, process)

    def begin(self) -> None:
        self.carry_out(self.coordinator.begin())

    def tell(self, what: str, thing: object = None) -> None:
        self.world.tell(f"{self.process.name}/{self.execution_id or '?'}", what, thing)

    @property
    def owns_the_job(self) -> bool:
        return self.execution_id == self.world.register.promised

    # --- events in, commands out ----------------------------------------------------------------

    def answer(self, command: str, event: c.Event) -> None:
        """The command is done; the coordinator hears of it some time later."""
        self._deliver_later(command, event)
        if _may_come_twice(event) and self.world.chance("answer_twice"):
            self.world.seen["an answer came twice"] += 1
            self._deliver_later(command, event)

    def _deliver_later(self, command: str, event: c.Event) -> None:
        late = self.world.rng.randint(50, 800) if self.world.chance("answer_late") else 0
        self.world.after(
            self.process, lambda: self._deliver(event), Point("after", command), at_least=late
        )

    def _deliver(self, event: c.Event) -> None:
        # Tasks and phase 2 outlive an execution that is restarted in the same process (F17).
        current = self.process.driver
        if current is None:
            return
        if current is not self:
            if not isinstance(event, c.EpochAcked | c.EpochFailed | c.Committed):
                return
            self.world.seen["an answer reached the next execution"] += 1
        current.handle(event)

    def handle(self, event: c.Event) -> None:
        if not isinstance(event, c.Opportunity):
            self.tell("<-", event)
        self._perhaps_cancel()
        before = self.coordinator.settling
        commands = self.coordinator.handle(event)
        if not before.is_decided and self.coordinator.phase is c.Phase.IN_EPOCH:
            if self.coordinator.settling is not before and self.coordinator.settling.is_decided:
                how = "decided" if self.coordinator.settling is not c.Settling.NONE else "given up"
                self.world.seen[f"a snapshot was {how} under a running epoch"] += 1
        if isinstance(event, c.EpochAcked):
            self._note_progress(event)
        self.carry_out(commands)
        if self.coordinator.phase is c.Phase.READY:
            self.was_ready = True
        self._schedule_poll()

    def _perhaps_cancel(self) -> None:
        """Somebody wants the job down, at any moment; the engine passes it on before all else."""
        phase = self.coordinator.phase
        if phase is c.Phase.STOPPED or self._is_cancelled:
            return
        world = self.world
        if not world.has_users or world.users.random() >= world.odds.cancelled:
            return
        self.world.seen["cancelled in recovery" if phase.is_recovery else "cancelled"] += 1
        self.tell("is cancelled")
        # Once all input is taken a cancel comes too late to be seen in the end.
        self._is_cancelled = self._stop_asked is not c.StopKind.COMPLETE
        self._stop_asked = self._stop_asked if not self._is_cancelled else c.StopKind.CANCEL
        self.carry_out(self.coordinator.handle(c.CancelRequested()))

    def _note_progress(self, event: c.EpochAcked) -> None:
        running = self._running
        if running is None or running.epoch_id != event.epoch_id:
            return
        if event.execution_id == self.execution_id and self.coordinator.phase != c.Phase.STOPPED:
            self._running = None
            self.position = list(event.sources[SOURCE])
            for ack in event.acks:
                for path in ack.obsolete:
                    self.runs.pop(path, None)

    def carry_out(self, commands: Iterable[c.Command]) -> None:
        for command in commands:
            name = type(command).__name__
            self.tell("->", command)
            if isinstance(command, c.WriteRecord):
                self._write_record(command.purpose, command.record)
                continue
            self.world.after(
                self.process, lambda it=command: self._perform(it), Point("before", name)
            )

    def _perform(self, command: c.Command) -> None:
        match command:
            case c.Claim():
                self._claim()
            case c.LoadManifest(ref):
                recovery.load(self, ref)
            case c.Restore(manifest):
                recovery.restore(self, manifest)
            case c.Commit():
                self._begin_phase_2(command)
            case c.AbortLeftovers():
                recovery.abort_leftovers(self, command)
            case c.RunEpoch():
                self._run_epoch(command)
            case c.Publish(epoch_id, artifacts):
                self._publish(epoch_id, artifacts)
            case c.AwaitSaved():
                self._await_saved(command)
            case c.WriteManifest(manifest):
                self._write_manifest(manifest)
            case c.CollectGarbage(manifests, chunk_sets):
                keys = [(vertex, name) for vertex, names in chunk_sets.items() for name in names]
                self.world.chunks.delete(manifests, keys)
                self.world.after(self.process, lambda: None, Point("after", "CollectGarbage"))
            case c.Stop():
                self._stop(command)

    # --- polling --------------------------------------------------------------------------------

    def _schedule_poll(self) -> None:
        if self.coordinator.phase is c.Phase.READY and not self._poll_scheduled:
            self._poll_scheduled = True
            self.world.after(self.process, self._poll)

    def _poll(self) -> None:
        self._poll_scheduled = False
        drained = self.position == [len(rows) for rows in self.world.scenario.rows]
        if drained and not self._is_cancelled:
            self._stop_asked = c.StopKind.COMPLETE
        elif self._stop_asked is None and self.world.chance("stop_asked"):
            self._stop_asked = self.world.scenario.draw_stop(self.world.rng)
        wants_epoch = self.world.rng.random() < 0.8
        self.handle(c.Opportunity(self.world.now_ms, wants_epoch, self._stop_asked))

    def _run_epoch(self, command: c.RunEpoch) -> None:
        if command.snapshot_id is not None:
            self.world.oracle.on_attempt(
                command.snapshot_id, command.execution_id, command.epoch_id
            )
        self._running = command
        self._is_stopping = command.terminal and not command.final
        Epoch(self, command).start()

    def in_names(self, attempt: str) -> str:
        """What the names of runs, chunk sets and staged rows say of a task's attempt."""
        return attempt

    def may_roll_back(self, execution_id: int, named: set[str]) -> Callable[[str, int], bool]:
        """What the abort pass may touch, given a token and the execution that staged it."""
        return lambda token, by: by < execution_id and token not in named

    def is_older(self, execution_id: int) -> bool:
        """May what this one has written be deleted?"""
        return execution_id < self.execution_id

    lives_with_damage = True
    """Older retained snapshots that are damaged stop no start."""

    def delete_garbage(self, execution_id: int, keep: list[Manifest], damaged: set[int]) -> None:
        self.world.chunks.delete_older(self.is_older, keep, max(damaged, default=0))

    # --- the record -----------------------------------------------------------------------------

    def _claim(self) -> None:
        ballot, found = self.world.register.claim()
        self.world.oracle.on_claim(ballot, self.deployment)
        self.execution_id = ballot
        try:
            (found or ExecutionRecord(JOB, ballot, JobStatus.NOT_RUNNING)).rewound(
                self.deployment.initial_snapshot
            )
        except JetError:
            self.world.seen["there was nothing to go back to any more"] += 1
            self._end(restart=False)
            return
        record = found or ExecutionRecord(JOB, ballot, JobStatus.NOT_RUNNING)
        record = replace(
            record, execution_id=ballot, status=JobStatus.STARTING, lease=self.writer.lease()
        )

        def claimed(outcome: c.WriteOutcome) -> None:
            if outcome is c.WriteOutcome.WRITTEN:
                in_two_phases = self.deployment.in_two_phases
                plan, sinks = self.deployment.plan, self.deployment.destinations
                self._deliver(c.Claimed(record, in_two_phases, plan, sinks))
                self.world.after(self.process, self._heartbeat, at_least=HEARTBEAT_MS)
            else:
                self._end(restart=False)

        self.writer.write("Claim", ballot, record, claimed)

    def _write_record(self, purpose: c.Purpose, record: ExecutionRecord) -> None:
        def written(outcome: c.WriteOutcome) -> None:
            if outcome is c.WriteOutcome.WRITTEN:
                self.world.seen[f"written: {purpose.value}"] += 1
                if purpose is c.Purpose.SNAPSHOT:
                    self.journals.decided()
            self._deliver(c.RecordAnswer(purpose, outcome, self.world.now_ms))

        self.writer.write(
            "WriteRecord", self.execution_id, record.with_lease(self.writer.lease()), written
        )

    def _heartbeat(self) -> None:
        if self._ended or self.coordinator.phase is c.Phase.STOPPED:
            return
        if self.world.chance("connector_fails"):
            self.world.seen["a connector failed at any moment"] += 1
            restartable = self.world.rng.random() < 0.5
            self._deliver(c.Failed("a connector's thread ended", restartable))
        if self.writer.is_idle:
            self._write_record(c.Purpose.LEASE, self.coordinator.record)
        self.world.after(self.process, self._heartbeat, at_least=HEARTBEAT_MS)

    # --- phase 1 --------------------------------------------------------------------------------

    def _await_saved(self, command: c.AwaitSaved) -> None:
        paths = {ack.saving.path for ack in command.acks if ack.saving}
        if paths - self.saved.keys():
            self.world.after(self.process, lambda: self._await_saved(command), at_least=20)
            return
        acks = (self.saved[ack.saving.path] if ack.saving else ack for ack in command.acks)
        saved = c.Saved(command.snapshot_id, tuple(acks), self.world.now_ms)
        self.answer("AwaitSaved", saved)

    def _write_manifest(self, manifest: c.Manifest) -> None:
        world, snapshot_id = self.world, manifest.snapshot_id
        world.oracle.on_attempt(snapshot_id, manifest.execution_id, manifest.epoch_id)
        failed = c.ManifestFailed(snapshot_id, "a member's disk is full", world.now_ms)
        if world.store_is_full() or world.chance("manifest_not_stored"):
            self.answer("WriteManifest", failed)
            return
        world.chunks.manifests[manifest.name] = (manifest.execution_id, manifest.to_bytes())
        if world.chance("manifest_answer_lost"):
            world.seen["the answer of a manifest write was lost"] += 1
            self.answer("WriteManifest", failed)
        else:
            self.answer("WriteManifest", c.ManifestWritten(snapshot_id, world.now_ms))

    def may_break(self, own: Token, by: Token) -> bool:
        """What a processor may roll back that no entry names, given its token and the other's."""
        return by < own

    # --- phase 2: goes on by itself, one artifact after the other, until all are committed ------

    def _begin_phase_2(self, command: c.Commit) -> None:
        left: list[Callable[[], None]] = []
        for owed in self.owed(command):
            if owed.fate is not SinkFate.KEPT:
                self.world.seen[f"owed to a sink that {owed.fate.name.lower()}"] += 1
                if owed.destination is None or owed.destination["kind"] == SEALED:
                    self.world.seen["a start was refused that could not reopen a sink"] += 1
                    self.world.refuse(self)
                    self.answer("Commit", c.Failed("it is sealed", restartable=False))
                    return
            assert owed.destination is not None
            place = owed.destination["place"]
            left += [partial(self._land, place, artifact) for artifact in owed.artifacts]
        self._commit(command.snapshot_id, left + (kept_by(self) if command.prepared else []))

    def owed(self, command: c.Commit) -> tuple[OwedCommit, ...]:
        """What phase 2 has to do, and where."""
        return owed_commits(command.artifacts, command.sinks, self.deployment.destinations)

    def _land(self, place: str, artifact: Artifact) -> None:
        try:
            self.world.sink_at(place).commit(artifact)
        except ArtifactGone as gone:
            if artifact.token in self.world.oracle.left and not self.owns_the_job:
                # A sleeper's, whose successor went back to before this was decided.
                self.world.seen["what a rewind has left was rolled back"] += 1
                return
            raise Violation(f"{gone} is neither staged nor committed") from gone

    def _commit(self, snapshot_id: int, left: list[Callable[[], None]]) -> None:
        if not left:
            self.answer("Commit", c.Committed(self.execution_id, snapshot_id, self.world.now_ms))
            return
        world = self.world
        one = world.rng.choice(left)

        def again() -> None:
            self._commit(snapshot_id, left)

        def land() -> None:
            # In flight: arrives also when its process has died meanwhile.
            one()
            if world.chance("commit_answer_lost"):
                world.seen["the answer of a commit was lost"] += 1
            else:
                left.remove(one)
            world.after(self.process, again, Point("during", "Commit"))

        if world.chance("commit_given_up"):
            self._deliver(c.Failed("the sink does not answer", restartable=True))
        elif world.chance("commit_throws"):
            world.seen["a commit threw"] += 1
            world.after(self.process, again, Point("during", "Commit"), at_least=50)
        else:
            world.after(None, land)

    def _publish(self, epoch_id: int, artifacts: tuple[Artifact, ...]) -> None:
        """Below exactly-once there is no phase 2: the rows are visible before the record."""
        try:
            destinations = self.deployment.destinations
            for artifact in artifacts:
                self.world.sink_at(destinations[artifact.sink]["place"]).commit(artifact)
        except ArtifactGone as gone:
            if self.owns_the_job:
                raise Violation(f"{gone} is neither staged nor committed") from gone
            # A sleeper's epoch that its successor has rolled back, and runs again.
            self.answer("Publish", c.Failed(str(gone), restartable=False))
        else:
            self.answer("Publish", c.Published(epoch_id))

    # --- the end --------------------------------------------------------------------------------

    def _stop(self, stop: c.Stop) -> None:
        if self._is_stopping and stop.restart and self._stop_asked is not c.StopKind.RESTART:
            raise Violation(f"asked to {self._stop_asked}, it begins again: {stop.reason}")
        if self._is_cancelled and (stop.restart or stop.cause not in _ENDS_OF_A_CANCEL):
            raise Violation(f"cancelled, it ends of something else: {stop.reason}")
        if not stop.write_status:
            self._end(stop.restart)
            return
        record = replace(
            self.coordinator.record, status=stop.status, cause=stop.cause, failure=stop.reason
        )

        def noted(outcome: c.WriteOutcome) -> None:
            self._end(stop.restart and outcome is not c.WriteOutcome.FENCED)

        self.writer.write("Stop", self.execution_id, record.with_lease(None), noted)

    def _end(self, restart: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self.writer.close()
        self.tell("ends" + (", another execution begins in this process" if restart else ""))
        if restart:
            self.world.begin_execution(self.process)
        else:
            self.world.end_process(self.process)


_ENDS_OF_A_CANCEL = (c.StopCause.CANCEL, c.StopCause.FENCED, c.StopCause.UNDECIDED)


def _may_come_twice(event: c.Event) -> bool:
    """Answers of other threads; reads, record writes and the map are calls that return once."""
    return isinstance(event, c.EpochAcked | c.EpochFailed | c.Committed | c.Published)
