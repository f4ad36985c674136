"""Looks at a job all the time: who drives it, whether two do, and since when nobody does.

Who drives it is in the store's record and in the process table, never in a run's status.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dagster_jet import Jet
from dagster_jet.errors import StoreError
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.snapshot.record import ExecutionRecord, Lease

_POLL_SECONDS = 0.1


@dataclass
class Span:
    """Begin and end of a time, in seconds since 1970."""

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
        died: why it has ended before its time; "" if it has not.
    """

    def __init__(self, jet: Jet, job: str) -> None:
        super().__init__(daemon=True)
        self._jet, self._job = jet, job
        self._done = threading.Event()
        self._drivers: dict[int, Lease] = {}
        """Leases by execution; of those that did not end by themselves."""
        self.executions = 0
        self.outages = [Span(time.time())]
        self.doubles: list[str] = []
        self.died = ""

    def run(self) -> None:
        try:
            while not self._done.wait(_POLL_SECONDS):
                with suppress(StoreError):  # somebody writes; look again
                    self._look(read_record(self._jet.store, self._job))
        except Exception as error:  # nobody else would see it
            self.died = f"{type(error).__name__}: {error}"

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


@dataclass(frozen=True)
class Tick:
    """One of the supervisor's that did not fail.

    Attributes:
        begun: when it began to look, in seconds since 1970.
        ended: when it was over.
        text: what it said, ``<verdict>: <reason>``; of one that requested a run "restart".
    """

    begun: float
    ended: float
    text: str

    @property
    def verdict(self) -> str:
        return self.text.partition(":")[0]

    @property
    def back_off_seconds(self) -> float:
        """Pause that the tick announced before the next request."""
        announced = re.search(r"attempt \d+ of \d+ in (\d+) s$", self.text)
        return float(announced[1]) if announced else 0.0

    def excuses(self, seconds: float, lease_ttl: float) -> bool:
        """Whether it says why nobody drives the job, so many seconds after somebody did last."""
        if self.verdict in ("start", "restart"):
            return True
        if self.verdict == "adopt":  # a lease may be believed for so long
            return seconds <= lease_ttl
        return self.verdict == "wait" and _WAITS.search(self.text) is not None


_WAITS = re.compile(
    r"run \S+ was (requested|launched) |attempt \d+ of \d+ in |another tick or a user was faster"
)
"""Reasons to wait that are allowed where nobody has paused, suspended or drained the job."""


@dataclass(frozen=True)
class Patience:
    """Limits of durations, in seconds: with the supervisor's defaults, and the default lease's.

    Attributes:
        interval: between two ticks.
        slow: what a loaded machine may add to it.
        start_up: from a request to the lease.
        lost_request: for how long a request is waited for whose run was lost on the way.
        lease_ttl: for how long a lease may be believed.
        back: in which a killed daemon or code server has to tick again.
    """

    interval: float = 10.0
    slow: float = 30.0
    start_up: float = 60.0
    lost_request: float = 180.0
    lease_ttl: float = 10.0
    back: float = 90.0

    def on_a_machine_so_slow(self, slowness: float) -> Patience:
        """Patience on a slower machine: every duration that depends on a processor is
        multiplied."""
        return replace(
            self,
            slow=self.slow * slowness,
            start_up=self.start_up * slowness,
            back=self.back * slowness,
        )


def faults(
    outage: Span, ticks: Sequence[Tick], kills: Sequence[float], patience: Patience
) -> list[str]:
    """Faults in a time in which nobody drove the job.

    Args:
        outage: that time.
        ticks: of the supervisor, in order.
        kills: when the daemon or the code server was killed, or started first.
        patience: how long what may take.
    """
    inside = [t for t in ticks if outage.begin < t.begun and t.ended < outage.end]
    wrong = [t for t in inside if not t.excuses(t.begun - outage.begin, patience.lease_ttl)]
    found = [
        f"{tick.begun - outage.begin:.0f} s after the job was left alone a tick said {tick.text!r}"
        for tick in wrong
    ]
    away = absences(kills, [t.ended for t in ticks], patience.back)
    said = [t.ended for t in inside if t not in wrong]
    silence = longest_silence(outage, said, away)
    if silence > patience.interval + patience.slow:
        found.append(
            f"nobody drove the job for {outage.seconds:.0f} s, and for {silence:.0f} s of it no "
            "tick said why"
        )
    announced = [Span(t.ended, t.ended + t.back_off_seconds) for t in inside]
    taken = outage.without(merged([*away, *announced]))
    # A request meets a code server that is gone, once per kill.
    lost = sum(outage.begin - patience.back <= kill < outage.end for kill in kills)
    most = patience.interval + patience.slow + patience.start_up + lost * patience.lost_request
    if taken > most:
        found.append(
            f"nobody drove the job for {outage.seconds:.0f} s: {taken:.0f} s that no back-off "
            f"explains, and {most:.0f} s may be"
        )
    return found


def longest_silence(outage: Span, ticks: Sequence[float], absences: Sequence[Span]) -> float:
    """The longest part of an outage in which no tick said why, in seconds, but for `absences`."""
    marks = [outage.begin, *(t for t in ticks if outage.begin < t < outage.end), outage.end]
    return max(Span(before, after).without(absences) for before, after in itertools.pairwise(marks))


def absences(kills: Iterable[float], ticks: Sequence[float], at_most_s: float) -> list[Span]:
    """Times from a kill of the daemon or the code server until a tick came through again;
    merged."""
    found = []
    for kill in kills:
        back = next((tick for tick in ticks if tick > kill), float("inf"))
        found.append(Span(kill, min(back, kill + at_most_s)))
    return merged(found)


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same times, none of them twice."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda span: span.begin):
        if found and span.begin <= found[-1].end:
            found[-1].end = max(found[-1].end, span.end)
        else:
            found.append(Span(span.begin, span.end))
    return found
