"""Writes of one execution to the record: one at a time, in order, each with a fate of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from dagster_jet.snapshot.protocol import WriteOutcome
from dagster_jet.snapshot.record import ExecutionRecord, Lease

from .scenario import Point

if TYPE_CHECKING:
    from .world import Process, World

HEARTBEAT_MS = 400

Done = Callable[[WriteOutcome], None]


class RecordWriter:
    def __init__(self, world: World, process: Process) -> None:
        self.world, self.process = world, process
        self._waiting: deque[tuple[str, int, ExecutionRecord, Done]] = deque()
        self._is_writing = False
        self._is_unknown = False
        """Whether an outcome is unknown: nothing more is sent then, as with the engine's
        register."""

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._is_writing

    def lease(self) -> Lease:
        return Lease(self.process.name, "host", 1, 0, self.world.now_ms, 3 * HEARTBEAT_MS)

    def write(self, command: str, ballot: int, record: ExecutionRecord, done: Done) -> None:
        self._waiting.append((command, ballot, record, done))
        self._next()

    def close(self) -> None:
        """Drops writes that are not yet sent; writes that are sent may still arrive."""
        self._waiting.clear()

    def _next(self) -> None:
        if self._is_writing or not self._waiting:
            return
        self._is_writing = True
        command, ballot, record, done = self._waiting.popleft()
        point = Point("before", command) if command == "WriteRecord" else None
        self.world.after(self.process, lambda: self._send(command, ballot, record, done), point)

    def _send(self, command: str, ballot: int, record: ExecutionRecord, done: Done) -> None:
        """Sends a write: it is not sent, lost on the way, landed but unheard of, late, or
        answered."""
        world, register = self.world, self.world.register
        if self._is_unknown:
            self._answer(command, WriteOutcome.UNKNOWN, done)
            return
        if world.chance("record_unavailable"):
            self._answer(command, WriteOutcome.UNAVAILABLE, done)
            return
        write = register.send(ballot, record)

        def land_unheard() -> None:
            if not register.land(write):
                world.seen["a delayed record write was fenced"] += 1
                world.tell(self.process.name, f"   its late {command} is refused: fenced")

        def land() -> None:
            accepted = register.land(write)
            outcome = WriteOutcome.WRITTEN if accepted else WriteOutcome.FENCED
            self._answer(command, outcome, done)

        if world.chance("record_never_arrives"):
            register.lose(write)
            self._answer(command, WriteOutcome.UNKNOWN, done)
        elif world.chance("record_answer_lost"):
            world.seen["the answer of a record write was lost"] += 1
            world.after(None, land_unheard, at_least=world.rng.choice((0, 0, 300, 3000)))
            self._answer(command, WriteOutcome.UNKNOWN, done)
        else:
            world.after(None, land)

    def _answer(self, command: str, outcome: WriteOutcome, done: Done) -> None:
        self._is_unknown |= outcome is WriteOutcome.UNKNOWN

        def hear() -> None:
            self._is_writing = False
            self.world.tell(self.process.name, f"<- {command} {outcome.name}")
            done(outcome)
            self._next()

        self.world.after(self.process, hear, Point("after", command))
