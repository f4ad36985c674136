"""Progress of a job in one line for people: rows, rate, lag, watermark, last snapshot."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dagster_jet.core.moments import moment
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionEnded,
    ExecutionRestarting,
    ExecutionStarted,
    JobEvent,
    ProgressReported,
    SnapshotCommitted,
    SourceProgress,
    SourceUnavailable,
    StageProgress,
    StandingBy,
)
from dagster_jet.observe.job_observer import JobObserver
from dagster_jet.observe.reading.terminal_line import DRAW_EVERY_S
from dagster_jet.snapshot.record import JobStatus

_RATE_OVER_S, _RATE_OVER_EPOCHS = 5.0, 3
_ENDS: Mapping[JobStatus | None, str] = {
    JobStatus.COMPLETED: "completed",
    JobStatus.SUSPENDED: "suspended",
    JobStatus.FAILED: "failed",
}


@dataclass
class RunProgress(JobObserver):
    """Progress of a job in this process. One thread notes events, another makes lines.

    Args:
        seconds: a monotonic clock.
    """

    makes: ClassVar[str] = "a line of progress"

    job: str
    seconds: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float = field(init=False)
    _doing: str = "starting"
    _rows: int = 0
    _epochs: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)
    """End times of epochs, and rows read by then, since the last start."""
    _lag: str = ""
    _watermark: str = ""
    _snapshot: tuple[int, float] | None = None
    """The last committed snapshot, and when its event came."""
    _status: JobStatus | None = None
    _rows_before: int | None = None
    """Rows that the job had read before its first execution here."""

    def __post_init__(self) -> None:
        self._began = self.seconds()

    def _note(self, event: JobEvent) -> None:
        with self._lock:
            match event:
                case ExecutionStarted():
                    self._doing = ""
                    self._note_inputs(event.stages, event.sources)
                    read = sum(source.rows_read for source in event.sources.values())
                    if self._rows_before is None:
                        self._rows_before = read
                    self._rows = read - self._rows_before  # the rest is read again
                    self._marks = deque([(self.seconds(), self._rows)])
                case EpochCompleted(rows=rows):
                    self._doing = ""
                    self._rows += rows
                    self._epochs += 1
                    self._marks.append((self.seconds(), self._rows))
                case SnapshotCommitted(snapshot_id=snapshot_id):
                    self._snapshot = snapshot_id, self.seconds()
                    self._note_inputs(event.stages, event.sources)
                case ProgressReported():
                    self._note_inputs(event.stages, event.sources)
                case SourceUnavailable(source=source):
                    self._doing = f"waits for {source}"
                case StandingBy(execution_id=execution_id):
                    self._doing = f"stands by for execution {execution_id}"
                case ExecutionRestarting(reason=reason):
                    self._doing = f"restarts: {_one_line(reason)}"
                case ExecutionEnded(status=status):
                    self._status = status
                case _:
                    pass

    def line(self) -> str:
        """The current line, most important parts first, because terminals are narrow."""
        with self._lock:
            now = self.seconds()
            if self._epochs == 0 and self._doing == "starting":
                return f"{self.job}  starting, {now - self._began:.0f} s"
            parts = [self.job, self._doing, f"{self._rows:,} rows", f"{self._rate(now)} rows/s"]
            parts += [self._lag, self._watermark]
            if self._snapshot is not None:
                snapshot_id, at = self._snapshot
                parts.append(f"snapshot {snapshot_id}, {now - at:.0f} s ago")
            return "  ".join(part for part in parts if part)

    def summary(self, *, is_over: bool) -> str:
        """Final summary line."""
        with self._lock:
            seconds = self.seconds() - self._began
            rate = count(self._rows / seconds) if seconds > 0 else "0"
            snapshot = f", snapshot {self._snapshot[0]}" if self._snapshot else ""
            end = _ENDS.get(self._status, "ended") if is_over else "still runs"
            return (
                f"{self.job}  {end}: {self._rows:,} rows in {seconds:.1f} s ({rate} rows/s), "
                f"{self._epochs} epochs{snapshot}"
            )

    def _note_inputs(
        self, stages: Mapping[str, StageProgress], sources: Mapping[str, SourceProgress]
    ) -> None:
        self._lag = lag_of(sources.values())
        known = [s.watermark_ms for s in stages.values() if s.watermark_ms is not None]
        self._watermark = f"watermark {moment(min(known))}" if known else ""

    def _rate(self, now: float) -> str:
        """Rate over the last seconds, or the last epochs if they are long; falls without input."""
        while len(self._marks) > _RATE_OVER_EPOCHS + 1 and self._marks[1][0] <= now - _RATE_OVER_S:
            self._marks.popleft()
        if not self._marks:
            return "0"
        since, rows = self._marks[0]
        return count((self._rows - rows) / max(now - since, DRAW_EVERY_S))


def lag_of(sources: Iterable[SourceProgress]) -> str:
    """Waiting input of all sources together; empty: none is known."""
    waiting: dict[str, float] = {}
    for source in sources:
        for unit, number in source.lag.items():
            waiting[unit] = waiting.get(unit, 0) + number
    shown = [f"{count(number)} {unit}" for unit, number in waiting.items() if number]
    return f"lag {', '.join(shown)}" if shown else ""


def count(number: float) -> str:
    """A number with up to three significant digits, for people: 312 k."""
    for unit in ("", " k", " M"):
        if number < 1000:
            return f"{number:.0f}{unit}" if number >= 10 or not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:,.1f} G"


def span(ms: float) -> str:
    """A duration, for people: 4 min 10 s."""
    seconds = max(0, round(ms / 1000))
    if seconds < 60:
        return f"{seconds} s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 60:
        return f"{minutes} min {seconds % 60} s" if seconds % 60 else f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days} days"


def _one_line(text: str) -> str:
    return " ".join(text.split())
