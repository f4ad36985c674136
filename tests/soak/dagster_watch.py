"""Looks at a job all the time: who drives it, whether two do, and since when nobody does.

Who drives it is in the store's record and in the process table, never in a run's status.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dagster_jet import Jet
from dagster_jet.errors import StoreError
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.snapshot.record import ExecutionRecord, Lease

_POLL_SECONDS = 0.1


@dataclass
class Span:
    """From when to when, in seconds since 1970."""

    begin: float
    end: float = float("inf")

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def without(self, others: Iterable[Span]) -> float:
        """The seconds that are in none of the others, which do not overlap."""
        shared = sum(
            max(0.0, min(self.end, other.end) - max(self.begin, other.begin)) for other in others
        )
        return self.seconds - shared


class Watch(threading.Thread):
    """Polls the record until it is told to stop.

    Attributes:
        outages: times in which nobody drove the job; the last one may be open.
        doubles: what was seen of two executions alive at once.
        executions: how many were seen.
    """

    def __init__(self, jet: Jet, job: str) -> None:
        super().__init__(daemon=True)
        self._jet, self._job = jet, job
        self._done = threading.Event()
        self._drivers: dict[int, Lease] = {}
        """By execution; of those that did not end by themselves."""
        self.executions = 0
        self.outages = [Span(time.time())]
        self.doubles: list[str] = []

    def run(self) -> None:
        while not self._done.wait(_POLL_SECONDS):
            with suppress(StoreError):  # somebody writes; look again
                self._look(self._jet.record(self._job))

    def stop(self) -> None:
        self._done.set()
        if self.ident is not None:
            self.join()

    @property
    def driver(self) -> Lease | None:
        """The newest lease that was seen, of a process that lives."""
        newest = max(self._drivers, default=0)
        lease = self._drivers.get(newest)
        return lease if lease is not None and is_owner_alive(lease) else None

    def _look(self, record: ExecutionRecord | None) -> None:
        now = time.time()
        lease = record.lease if record is not None and record.status.is_live else None
        is_driven = lease is not None and bool(is_owner_alive(lease))
        is_down = self.outages[-1].end == float("inf")
        if is_driven and is_down:
            self.outages[-1].end = now
        elif not is_driven and not is_down:
            self.outages.append(Span(now))
        if record is None:
            return
        if lease is None:  # it has said so itself: its process may take its time to go
            self._drivers.clear()
            return
        if record.execution_id not in self._drivers:
            self.executions += 1
        self._drivers[record.execution_id] = lease
        for execution, older in list(self._drivers.items()):
            if execution >= record.execution_id or older.pid == lease.pid:
                continue
            if is_driven and is_owner_alive(older):
                self.doubles.append(
                    f"execution {execution} of process {older.pid} lives beside "
                    f"{record.execution_id} of process {lease.pid}"
                )
            del self._drivers[execution]


def longest_silence(outage: Span, ticks: Sequence[float], absences: Sequence[Span]) -> float:
    """The longest part of an outage in which no tick said why, in seconds, but for `absences`."""
    marks = [outage.begin, *(t for t in ticks if outage.begin < t < outage.end), outage.end]
    return max(Span(before, after).without(absences) for before, after in itertools.pairwise(marks))


def absences(kills: Iterable[float], ticks: Sequence[float], at_most_s: float) -> list[Span]:
    """Since the daemon or the code server was killed until a tick came through again; merged."""
    found: list[Span] = []
    for kill in sorted(kills):
        back = next((tick for tick in ticks if tick > kill), float("inf"))
        end = min(back, kill + at_most_s)
        if found and kill <= found[-1].end:
            found[-1].end = max(found[-1].end, end)
        else:
            found.append(Span(kill, end))
    return found
