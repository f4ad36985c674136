"""The execution record's register, as its users see it: one value, one owner at a time.

What `dagster_jet.store.register` promises over many members, with nothing of how: a claim fences
all lower ballots; a write may be refused, be lost, or land long after its writer gave up on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from dagster_jet.snapshot.record import ExecutionRecord


@dataclass
class Write:
    """A write on its way. `landed` is None until it arrives, then whether it was accepted."""

    ballot: int
    sequence: int
    record: ExecutionRecord
    landed: bool | None = None


class Register:
    """Linearizable, with writes ordered by (ballot, sequence).

    Args:
        rng: decides which writes in flight a claim still finds.
        on_value: called with each value that the register ever holds.
    """

    def __init__(self, rng: random.Random, on_value: Callable[[ExecutionRecord], None]) -> None:
        self._rng = rng
        self._on_value = on_value
        self._record: ExecutionRecord | None = None
        self._place = (0, 0)
        self._sequence = 0
        self._in_flight: list[Write] = []
        self.promised = 0

    def read(self) -> ExecutionRecord | None:
        return self._record

    def claim(self) -> tuple[int, ExecutionRecord | None]:
        """Wins the next ballot; what is in flight below it is either adopted or fenced."""
        for write in [w for w in self._in_flight if self._rng.random() < 0.3]:
            self.land(write)
        self.promised += 1
        return self.promised, self.read()

    def send(self, ballot: int, record: ExecutionRecord) -> Write:
        self._sequence += 1
        write = Write(ballot, self._sequence, record)
        self._in_flight.append(write)
        return write

    def lose(self, write: Write) -> None:
        """The write certainly never arrives."""
        self._in_flight.remove(write)
        write.landed = False

    def land(self, write: Write) -> bool:
        """The write arrives (for the first time); says whether it was accepted now or before.

        A write that a claim adopted was accepted; its writer still hears "fenced".
        """
        if write.landed is None:
            self._in_flight.remove(write)
            write.landed = self.accepts(write)
            if write.landed:
                self._place = (write.ballot, write.sequence)
                self._record = write.record
                self._on_value(write.record)
        return write.landed and self.promised == write.ballot

    def accepts(self, write: Write) -> bool:
        return write.ballot >= self.promised and (write.ballot, write.sequence) > self._place
