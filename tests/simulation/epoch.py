"""The tasks of one epoch: they read input and state, and leave runs, chunk sets and artifacts.

A task may run twice; each attempt writes under names of its own. Which attempt counts is decided
by the acks alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.snapshot import protocol as c
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Ack, ChunkSet, Run, Saving, ShardState
from dagster_jet.snapshot.storage.chunks import ChunkSetName

from .chunks import Delta, MissingFromStore, merge
from .oracle import Violation
from .recovery import shard_of
from .scenario import COUNT, PROMISES, ROW_SINK, SOURCE, WINDOW, WINDOW_SINK, Point

if TYPE_CHECKING:
    from .deployment import SinkHere
    from .driver import Driver


class Attempt(Protocol):
    def __call__(self, name: str, torn: bool = False) -> Ack:
        """`torn`: it dies in the middle of writing, and nobody hears of it."""
        ...


class Epoch:
    def __init__(self, driver: Driver, command: c.RunEpoch, view: CoordinatorView) -> None:
        self.driver, self.world, self.command = driver, driver.world, command
        self.rng = driver.world.rng
        self.states = {v: list(s) for v, s in view.shards.items()}
        self.watermarks = driver.planner.watermarks(driver.stage_times(), final=command.final)
        self.end = self._plan_end()
        self.rows = tuple(
            row
            for partition, rows in enumerate(self.world.scenario.rows)
            for row in rows[driver.position[partition] : self.end[partition]]
        )
        self.acks: list[Ack] = []
        self.open_tasks = 0

    def _plan_end(self) -> list[int]:
        """S1: the barrier, where the engine's planner lets input in."""
        start = self.driver.position
        if not self.driver.planner.takes_input(self.command):
            return start
        left, end = self.driver.handed_out(), []
        for at, rows in zip(start, self.world.scenario.rows, strict=True):
            taken = min(len(rows) - at, self.rng.randint(0, 4), left)
            end.append(at + taken)
            left -= taken
        return end

    def _check(self) -> None:
        """Checks the planner's decisions for an epoch, apart from its rows."""
        command, driver = self.command, self.driver
        if command.terminal and not command.final and self.rows:
            raise Violation("an epoch that ends the execution takes new input")
        reached, known = driver.reached_ms, driver.known_ms
        watermark = self.watermarks[WINDOW]
        assert watermark is not None
        if watermark < reached:
            raise Violation(f"the watermark fell back from {reached} to {watermark}")
        if not command.final and watermark > max(reached, known):
            raise Violation(f"watermark {watermark}, and rows before it say {known}")
        if command.final and watermark != FINAL_WATERMARK_MS:
            raise Violation("the last epoch leaves windows open")

    def start(self) -> None:
        """S2: everything that the tasks will do is planned here, so that attempts are alike."""
        self._check()
        self.acks.append(self._journaled())
        released = self._plan_window()
        stages = self.driver.deployment.stages
        tasks = [self._stateful(WINDOW, shard, gone) for shard, gone in enumerate(released)]
        if COUNT in stages:
            tasks += [self._stateful(COUNT, shard, ()) for shard in range(self._shards(COUNT))]
        if PROMISES in stages:
            tasks += [self._promising(shard) for shard in range(self._shards(PROMISES))]
        outputs = {WINDOW_SINK: sorted(r for gone in released for r in gone), ROW_SINK: self.rows}
        for stream, sink in self.driver.deployment.sinks.items():
            writers = self._shards(sink.name)
            for shard in range(writers):
                rows = tuple(row for row in outputs[stream] if row % writers == shard)
                tasks.append(self._writer(sink, shard, rows))
        self.open_tasks = len(tasks)
        outlives = self.world.scenario.tasks_outlive_driver
        for task in tasks:
            if outlives:
                self.world.after(None, lambda it=task: self._run_task(it))
            else:
                self.world.after(self.driver.process, lambda it=task: self._run_task(it), _DURING)

    def _journaled(self) -> Ack:
        """The source's own: what was planned is noted, and saved if this ends in a snapshot."""
        driver, command = self.driver, self.command
        driver.reader.plan(self.rows)
        driver.journals.begin_epoch(command, {SOURCE: self.states[SOURCE][0].chain})
        driver.journals.begun()
        chunk_set, error = driver.journals.written(SOURCE)
        return Ack(SOURCE, 0, "driver", chunk_set=chunk_set, snapshot_error=error)

    def _shards(self, vertex: str) -> int:
        return self.driver.config.shards[vertex]

    def _arriving(self, shard: int, count: int) -> tuple[int, ...]:
        return tuple(row for row in self.rows if shard_of(row, count) == shard)

    def _plan_window(self) -> list[tuple[int, ...]]:
        """Chooses the rows that each shard of the window emits; at the end of the input all of
        them."""
        count = self._shards(WINDOW)
        share = 1.0 if self.command.final else self.rng.choice((0.0, 0.3, 0.7))
        released = []
        for shard in range(count):
            held = merge(self._read(self.states[WINDOW][shard])).came
            rows = sorted((*held, *self._arriving(shard, count)))
            released.append(tuple(row for row in rows if self.rng.random() < share))
        return released

    def _read(self, state: ShardState) -> list[Delta]:
        try:
            runs = (*state.saved, *state.deciding, *state.unsaved)
            return [self.driver.runs[run.path] for run in runs]
        except KeyError as path:
            raise Violation(f"run {path} is gone, and no executor was lost") from path

    # --- tasks ----------------------------------------------------------------------------------

    def _run_task(self, attempt: Attempt) -> None:
        """S2 on one executor, then S3 if it was the last."""
        self._note_acks(attempt)
        self.open_tasks -= 1
        if self.open_tasks == 0:
            self._answer()

    def _note_acks(self, attempt: Attempt) -> None:
        world = self.world
        if world.chance("task_dies_writing"):
            # Before the one that succeeds, or beside it and later: speculation.
            world.seen["a task died while it wrote"] += 1
            at_least = self.rng.choice((0, 0, 100, 800))
            world.after(None, lambda: attempt("died", torn=True), at_least=at_least)
        first = attempt("a0")
        if world.chance("task_retried"):
            self.acks.append(attempt("a1"))
            if world.chance("two_attempts_acked"):
                world.seen["two attempts of a task acked"] += 1
                self.acks.append(first)
            return
        if world.chance("ack_missing"):
            world.seen["an ack was missing"] += 1
            return
        self.acks.append(first)
        if world.chance("two_attempts_acked"):
            world.seen["two attempts of a task acked"] += 1
            self.acks.append(attempt("a1"))
        elif world.chance("ack_twice"):
            world.seen["the same ack came twice"] += 1
            self.acks.append(first)

    def _answer(self) -> None:
        world, command = self.world, self.command
        self.rng.shuffle(self.acks)
        failure = None
        if world.chance("epoch_answer_lost") or world.chance("executor_lost"):
            world.seen["an epoch's answer was lost"] += 1
            failure = ("executor lost", True)
        elif world.chance("user_error"):
            failure = ("a user's function raised", False)
        if failure is not None:
            self.driver.answer(
                command, c.EpochFailed(command.execution_id, command.epoch_id, *failure)
            )
            return
        self.driver.epoch_ends(self.end, self.watermarks[WINDOW])
        self.driver.answer(
            command,
            c.EpochAcked(
                command.execution_id,
                command.epoch_id,
                tuple(self.acks),
                sources={SOURCE: self.end},
                watermarks={},
                now_ms=world.now_ms,
                unacknowledged={SOURCE: {"rows": sum(self.end)}},
            ),
        )

    def _writer(self, sink: SinkHere, shard: int, rows: tuple[int, ...]) -> Attempt:
        def attempt(name: str, torn: bool = False) -> Ack:
            ack = Ack(sink.name, shard, name, rows_in=len(rows))
            if not rows:
                return ack
            by, epoch_id = self.command.execution_id, self.command.epoch_id
            written = rows[: len(rows) // 2] if torn else rows
            in_name = self.driver.in_names(name)
            place = self.world.sink_at(sink.place)
            artifact = place.stage(sink.name, written, by, epoch_id, shard, in_name)
            return replace(ack, artifacts=(artifact,))

        return attempt

    def _stateful(self, vertex: str, shard: int, released: tuple[int, ...]) -> Attempt:
        arriving = self._arriving(shard, self._shards(vertex))
        world, state = self.world, self.states[vertex][shard]
        self._read(state)
        compaction = self.rng.choices(("none", "all", "unsaved"), (80, 12, 8))[0]
        if compaction == "all" and state.deciding:
            compaction = "none"  # what is to be put on top of these is not known yet
        drop_share = self.rng.random() if self.rng.random() < 0.25 else 0.0

        def attempt(name: str, torn: bool = False) -> Ack:
            task = _StateTask(self, vertex, shard, name, torn)
            ack = Ack(vertex, shard, name, rows_in=len(arriving), rows_out=len(released))
            if torn:
                return task.die(ack, state, Delta(arriving, released))
            ack = task.update(ack, state, Delta(arriving, released))
            ack = task.compact(ack, compaction)
            if self.command.snapshot_id is None:
                return ack
            later = world.chance("state_saved_later")
            return task.save(ack, state.chain, drop_share, later=later)

        return attempt

    def _promising(self, shard: int) -> Attempt:
        """A new instance of the processor: restored, given the rows, prepared."""
        count = self._shards(PROMISES)
        arriving = self._arriving(shard, count)
        state = self.states[PROMISES][shard]
        restored = merge(self._read(state)).came
        token = (self.command.execution_id, self.command.epoch_id)
        world = self.world

        def prepare() -> tuple[int, ...]:
            world.promises.restore(self.driver, restored, shard, count, token)
            return (world.promises.prepare(shard, token, arriving),) if arriving else ()

        def attempt(name: str, torn: bool = False) -> Ack:
            own = prepare()
            if torn:
                return Ack(PROMISES, shard, name)
            if world.chance("task_retried"):
                # Another attempt, which is given up, gets so far at any later moment.
                world.seen["a late attempt prepared"] += 1
                world.after(None, prepare, at_least=self.rng.randint(0, 800))
            task = _StateTask(self, PROMISES, shard, name)
            ack = Ack(PROMISES, shard, name, rows_in=len(arriving), prepared=bool(own))
            ack = task.update(ack, state, Delta(own, restored))
            return ack if self.command.snapshot_id is None else task.save(ack, state.chain, 0)

        return attempt


class _StateTask:
    """One attempt at one shard of a stateful stage."""

    def __init__(
        self, epoch: Epoch, vertex: str, shard: int, attempt: str, torn: bool = False
    ) -> None:
        self.world, self.command = epoch.world, epoch.command
        self.driver, self.runs = epoch.driver, epoch.driver.runs
        self.vertex, self.shard, self.torn = vertex, shard, torn
        self.in_name = epoch.driver.in_names(attempt)

    def _write_run(self, kind: str, content: Delta) -> Run:
        path = (
            f"{self.command.execution_id}/{self.command.epoch_id}/"
            f"{self.vertex}-{self.shard}-{self.in_name}-{kind}"
        )
        self.runs[path] = _half(content) if self.torn else content
        return Run(path, len(content), 8 * len(content))

    def _content(self, runs: tuple[Run, ...]) -> list[Delta]:
        return [self.runs[run.path] for run in runs]

    def update(self, ack: Ack, state: ShardState, change: Delta) -> Ack:
        unsaved = state.unsaved
        if change:
            unsaved = (*unsaved, self._write_run("change", merge([change])))
        return replace(ack, saved=state.saved, unsaved=unsaved)

    def die(self, ack: Ack, state: ShardState, change: Delta) -> Ack:
        """Dies in the middle of writing; a late task may find its input gone."""
        ack = self.update(ack, state, change)
        if self.command.snapshot_id is not None and ack.unsaved:
            content = merge(self.runs.get(run.path, Delta()) for run in ack.unsaved)
            self.world.chunks.put_chunks(
                self.vertex, self._chunk_set_name(), self.command.execution_id, _half(content)
            )
        return ack

    def _chunk_set_name(self) -> str:
        by, snapshot_id = self.command.execution_id, self.command.snapshot_id
        assert snapshot_id is not None
        return str(ChunkSetName(self.vertex, snapshot_id, by, self.shard, self.in_name))

    def compact(self, ack: Ack, compaction: str) -> Ack:
        """One run instead of many. Together with saved ones it has no copy in the store yet."""
        old = {"none": (), "all": (*ack.saved, *ack.unsaved), "unsaved": ack.unsaved}[compaction]
        if len(old) < 2:
            return ack
        merged = self._write_run("merged", merge(self._content(old)))
        return replace(
            ack,
            saved=() if compaction == "all" else ack.saved,
            unsaved=(merged,),
            obsolete=tuple(run.path for run in old),
        )

    def save(
        self, ack: Ack, chain: tuple[ChunkSet, ...], drop_share: float, *, later: bool = False
    ) -> Ack:
        """Stores what is unsaved: as a base if that is all, else on top of the chain. If `later`,
        what is to be stored is known when the task is over, and stored some time afterwards."""
        world = self.world
        if not ack.unsaved:
            return ack
        is_base = not ack.saved
        dropped = 0 if is_base else int(drop_share * len(chain))
        try:
            rewritten = [world.chunks.read_chunks(self.vertex, old) for old in chain[:dropped]]
        except MissingFromStore as missing:
            return self._without_chain(ack, str(missing))
        content = merge([*rewritten, *self._content(ack.unsaved)])
        by, name = self.command.execution_id, self._chunk_set_name()

        def store() -> Ack:
            if world.chance("chunks_not_stored"):
                world.seen["chunks could not be stored"] += 1
                return replace(ack, snapshot_error="a member's disk is full")
            world.chunks.put_chunks(self.vertex, name, by, content)
            chunk_set = ChunkSet(name, 0, 1, len(content), 8 * len(content), is_base=is_base)
            return replace(ack, chunk_set=chunk_set, chain_dropped=dropped)

        if not later:
            return store()

        def store_later() -> None:
            world.seen["state was saved after its task"] += 1
            self.driver.saved[name] = store()

        worker = None if world.scenario.tasks_outlive_driver else self.driver.process
        world.after(worker, store_later, at_least=world.rng.randint(0, 800))
        return replace(ack, saving=Saving(name, 1))

    def _without_chain(self, ack: Ack, missing: str) -> Ack:
        """Handles a missing chain: a sleeper whose successor has moved on may find one, the owner
        never."""
        if self.command.execution_id == self.world.register.promised:
            raise Violation(f"the chain of a live snapshot lacks {missing}")
        return replace(ack, snapshot_error=missing)


def _half(content: Delta) -> Delta:
    return Delta(content.came[: len(content.came) // 2], content.went[: len(content.went) // 2])


_DURING = Point("during", "RunEpoch")
