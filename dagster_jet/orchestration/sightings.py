"""The sensor's cursor: since when things have been as they are, while we watched.

Nothing here compares two clocks. A lease that stands still, a request that nobody has taken up, a
run that has not begun: how long that is so is measured by one clock that only goes on, the boot's.
On another machine, or after a reboot, the watch begins anew. Either costs time, not rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from dagster_jet.system.process import boot_id


@dataclass(frozen=True)
class Moment:
    """A time on a clock that is one for all processes of one boot."""

    boot: str
    ms: int

    @classmethod
    def now(cls) -> Moment:
        return cls(boot_id(), time.monotonic_ns() // 1_000_000)


Clock = Callable[[], Moment]


class What(str, Enum):
    """What the supervisor watches."""

    LEASE = "lease"
    REQUEST = "request"
    RUN = "run"
    FENCED = "fenced"
    """A run that has lost the job to another one, and has not ended."""


@dataclass(frozen=True)
class Thing:
    """One of them, by an identity that changes when it does."""

    what: What
    identity: str

    def __str__(self) -> str:
        return f"{self.what.value} {self.identity}"

    @classmethod
    def named(cls, name: str) -> Thing:
        """Reads what `str` wrote. Raises ValueError for anything else."""
        what, _, identity = name.partition(" ")
        return cls(What(what), identity)


@dataclass(frozen=True)
class Sightings:
    """When each thing was first seen, of those that are still there.

    Attributes:
        boot: whose clock the times are of.
        since_ms: per thing, a time on that clock.
    """

    boot: str = ""
    since_ms: Mapping[Thing, int] = field(default_factory=dict)

    def after(self, things: Iterable[Thing], now: Moment) -> Sightings:
        """Return the sightings as of now: what is there still, and what is new."""
        known = self.since_ms if self.boot == now.boot else {}
        return Sightings(
            now.boot, {thing: min(known.get(thing, now.ms), now.ms) for thing in things}
        )

    def age_ms(self, thing: Thing, now: Moment) -> int:
        """Return how long it has been seen; 0 for what is not there."""
        return now.ms - self.since_ms.get(thing, now.ms)

    def to_cursor(self) -> str:
        since_ms = {str(thing): ms for thing, ms in self.since_ms.items()}
        return json.dumps({"boot": self.boot, "since_ms": since_ms})

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Sightings:
        """Read a cursor; one that cannot be read means: we have seen nothing yet."""
        try:
            fields = json.loads(cursor or "{}")
            since_ms = {Thing.named(name): int(ms) for name, ms in fields["since_ms"].items()}
            return cls(str(fields["boot"]), since_ms)
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()
