"""Sensor cursor: how long each watched object has been observed unchanged.

Durations are measured on the boot's monotonic clock only; two clocks are never compared. Examples
are a lease without a renewal, a request that no run has taken up, and a run that has not started.
On another machine or after a reboot the measurement starts again. That costs time, not rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dagster_jet.system.process import boot_id

_LEASE_SAVED_MS = 60_000
"""Longest delay until a renewed lease is saved. The death of an owner on another host is detected
later by as much."""


@dataclass(frozen=True)
class BootTime:
    """A time on the monotonic clock shared by all processes of one boot."""

    boot: str
    ms: int

    @classmethod
    def now(cls) -> BootTime:
        return cls(boot_id(), time.monotonic_ns() // 1_000_000)


Clock = Callable[[], BootTime]


class ObjectKind(str, Enum):
    """Kind of object that the supervisor watches."""

    LEASE = "lease"
    REQUEST = "request"
    RUN = "run"
    FENCED = "fenced"
    """A run that has lost the job to another run and has not ended."""
    OUTDATED = "outdated"
    """An execution of which Dagster knows that it runs an older definition than the loaded one."""
    STANDBY = "standby"
    """A run that stands by, or the newest request for one."""
    RETIRED = "retired"
    """An execution that was asked to end, so that the loaded definition is run."""


@dataclass(frozen=True)
class WatchedObject:
    """An observed object and a token that changes whenever the object does."""

    kind: ObjectKind
    identity: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.identity}"

    @classmethod
    def named(cls, name: str) -> WatchedObject:
        """Parses the output of `str`. Raises ValueError for anything else."""
        kind, _, identity = name.partition(" ")
        return cls(ObjectKind(kind), identity)


@dataclass(frozen=True)
class Sightings:
    """Time of the first observation of each object that still exists.

    Attributes:
        boot: id of the boot whose clock `since_ms` is on.
        since_ms: first observation per object, in ms.
    """

    boot: str = ""
    since_ms: Mapping[WatchedObject, int] = field(default_factory=dict)

    def after(self, objects: Iterable[WatchedObject], now: BootTime) -> Sightings:
        """Return the sightings at `now` of these objects; new ones are first seen at `now`."""
        known = self.since_ms if self.boot == now.boot else {}
        return Sightings(
            now.boot, {watched: min(known.get(watched, now.ms), now.ms) for watched in objects}
        )

    def age_ms(self, watched: WatchedObject, now: BootTime) -> int:
        """Return how long the object has been seen, in ms; 0 if it is not among the sightings."""
        return now.ms - self.since_ms.get(watched, now.ms)

    def may_be_lost(self, before: Sightings, now: BootTime) -> bool:
        """Return whether the tick may fail, which keeps the cursor of the tick before.

        Of a lease that is renewed again and again it is enough to save one now and then.

        Args:
            before: sightings of the cursor.
            now: time of the tick.
        """
        if before.boot != now.boot:
            return False
        gone = [w for w in before.since_ms if w not in self.since_ms]
        new = [w for w in self.since_ms if w not in before.since_ms]
        is_recent = all(before.age_ms(watched, now) < _LEASE_SAVED_MS for watched in gone)
        return is_recent and all(w.kind is ObjectKind.LEASE for w in (*gone, *new))

    def about(self, definition: str) -> list[WatchedObject]:
        """Return the objects that say which executions do not run this definition."""
        kinds = (ObjectKind.OUTDATED, ObjectKind.RETIRED)
        return [
            watched
            for watched in self.since_ms
            if watched.kind in kinds and watched.identity.endswith(f" {definition}")
        ]

    def to_cursor(self) -> str:
        since_ms = {str(watched): ms for watched, ms in self.since_ms.items()}
        return json.dumps({"boot": self.boot, "since_ms": since_ms})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Sightings:
        """Parse a cursor; an unreadable cursor gives empty sightings."""
        try:
            fields = json.loads(cursor or "{}")
            since_ms = {
                WatchedObject.named(name): int(ms) for name, ms in fields["since_ms"].items()
            }
            return cls(str(fields["boot"]), since_ms)
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()
