"""The last epochs and snapshots of one execution, each with what its time went to; bounded."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.core.phases import Phase
from dagster_jet.core.stored_format import check_format

FORMAT = 1
LAPS_MAX = 120
"""Epochs, and snapshots, that are kept."""
_CELLS_MAX = 6_000
"""Numbers that are saved: of a pipeline with very many stages fewer epochs are. At about six bytes
each that is 40 KB for the epochs, and less for the snapshots."""
_LAPS_MIN = 10

Key = tuple[Phase, str]
"""A phase, and its stage or sink; no name: of the whole job."""


@dataclass
class Lap:
    """One epoch, or one snapshot."""

    number: int = 0
    """Its id."""
    rows: int = 0
    ms: dict[Key, float] = field(default_factory=dict)

    def add(self, phase: Phase, ms: float, stage: str = "") -> None:
        """So much more time went to this."""
        self.ms[phase, stage] = self.ms.get((phase, stage), 0.0) + ms


@dataclass
class RecentLaps:
    """The last laps, oldest first."""

    first: Lap | None = None
    """The first epoch of the execution, which is like no other: Python workers are started, and
    the JVM compiles."""
    epochs: deque[Lap] = field(default_factory=lambda: deque(maxlen=LAPS_MAX))
    snapshots: deque[Lap] = field(default_factory=lambda: deque(maxlen=LAPS_MAX))
    added: int = 0
    """Laps so far."""

    def add_epoch(self, lap: Lap) -> None:
        if self.first is None:
            self.first = lap
        else:
            self.epochs.append(lap)
        self.added += 1

    def add_snapshot(self, lap: Lap) -> None:
        self.snapshots.append(lap)
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
    def from_bytes(cls, data: bytes, job: str) -> tuple[RecentLaps, int]:
        """Returns the laps, and when they were written.

        Raises:
            StoreMismatchError: a newer version has written them.
        """
        document: dict[str, Any] = json.loads(data)
        check_format("the job's profile", document["format"], FORMAT, job=job)
        laps = cls(next(iter(_laps(document["first"])), None))
        laps.epochs.extend(_laps(document["epochs"]))
        laps.snapshots.extend(_laps(document["snapshots"]))
        return laps, document["written_at_ms"]


def _columns(laps: Iterable[Lap]) -> dict[str, Any]:
    kept = list(laps)
    keys = list(dict.fromkeys(key for lap in kept for key in lap.ms))
    kept = kept[-max(_LAPS_MIN, _CELLS_MAX // max(1, len(keys))) :]
    return {
        "ids": [lap.number for lap in kept],
        "rows": [lap.rows for lap in kept],
        "ms": [
            [phase.value, stage, [round(lap.ms.get((phase, stage), 0.0), 1) for lap in kept]]
            for phase, stage in keys
        ],
    }


def _laps(columns: dict[str, Any]) -> Sequence[Lap]:
    laps = [Lap(n, rows) for n, rows in zip(columns["ids"], columns["rows"], strict=True)]
    for phase, stage, times in columns["ms"]:
        for lap, ms in zip(laps, times, strict=True):
            lap.add(Phase(phase), ms, stage)
    return laps
