"""Durations of the phases of an execution's last epochs and snapshots; bounded."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.core.phases import Phase
from dagster_jet.core.stored_format import check_format

FORMAT = 1
TIMINGS_MAX = 120
"""Number of epochs, and of snapshots, that are kept."""
_CELLS_MAX = 6_000
"""Most numbers that are saved; a pipeline with very many stages keeps fewer epochs. About six bytes
each: 40 KB for the epochs, and less for the snapshots."""
_TIMINGS_MIN = 10

Key = tuple[Phase, str]
"""A phase, and its stage or sink; an empty name stands for the whole job."""


@dataclass
class Timing:
    """Durations of the phases of one epoch or one snapshot."""

    number: int = 0
    """The epoch's or snapshot's id."""
    rows: int = 0
    ms: dict[Key, float] = field(default_factory=dict)

    def add(self, phase: Phase, ms: float, stage: str = "") -> None:
        """Adds to the duration of a phase."""
        self.ms[phase, stage] = self.ms.get((phase, stage), 0.0) + ms


@dataclass
class RecentTimings:
    """The last epochs and snapshots, oldest first."""

    first: Timing | None = None
    """The execution's first epoch: Python workers start and the JVM compiles, so it is apart."""
    epochs: deque[Timing] = field(default_factory=lambda: deque(maxlen=TIMINGS_MAX))
    snapshots: deque[Timing] = field(default_factory=lambda: deque(maxlen=TIMINGS_MAX))
    added: int = 0
    """Number of epochs and snapshots so far."""

    def add_epoch(self, timing: Timing) -> None:
        if self.first is None:
            self.first = timing
        else:
            self.epochs.append(timing)
        self.added += 1

    def add_snapshot(self, timing: Timing) -> None:
        self.snapshots.append(timing)
        self.added += 1

    def to_bytes(self, written_at_ms: int) -> bytes:
        """As JSON, column by column."""
        document = {
            "format": FORMAT,
            "written_at_ms": written_at_ms,
            "first": _columns([] if self.first is None else [self.first]),
            "epochs": _columns(self.epochs),
            "snapshots": _columns(self.snapshots),
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, job: str) -> tuple[RecentTimings, int]:
        """Returns the timings, and when they were written.

        Raises:
            StoreMismatchError: a newer version has written them.
        """
        document: dict[str, Any] = json.loads(data)
        check_format("the job's profile", document["format"], FORMAT, job=job)
        timings = cls(next(iter(_timings(document["first"])), None))
        timings.epochs.extend(_timings(document["epochs"]))
        timings.snapshots.extend(_timings(document["snapshots"]))
        return timings, document["written_at_ms"]


def _columns(timings: Iterable[Timing]) -> dict[str, Any]:
    kept = list(timings)
    keys = list(dict.fromkeys(key for timing in kept for key in timing.ms))
    kept = kept[-max(_TIMINGS_MIN, _CELLS_MAX // max(1, len(keys))) :]
    return {
        "ids": [timing.number for timing in kept],
        "rows": [timing.rows for timing in kept],
        "ms": [
            [phase.value, stage, [round(timing.ms.get((phase, stage), 0.0), 1) for timing in kept]]
            for phase, stage in keys
        ],
    }


def _timings(columns: dict[str, Any]) -> Sequence[Timing]:
    timings = [Timing(n, rows) for n, rows in zip(columns["ids"], columns["rows"], strict=True)]
    for phase, stage, times in columns["ms"]:
        for timing, ms in zip(timings, times, strict=True):
            timing.add(Phase(phase), ms, stage)
    return timings
