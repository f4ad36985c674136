"""State of a job of another engine, and the health verdicts on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_jet.orchestration.health import Health


@dataclass(frozen=True)
class Reading:
    """State of a job as its engine shows it, at one moment."""

    position: str
    """Changes whenever the job commits; the data version of its asset. Empty: no commit is
    shown."""
    state: str
    """State in the engine's own word."""
    is_up: bool = True
    """False if the engine itself says that the job does not run."""
    is_idle: bool = False
    """True if all input is known to be read, so that no commit is expected."""
    committed_at_ms: int | None = None
    """Time of the last commit. None: the engine does not show it."""
    watermark_ms: int | None = None
    lag: int | None = None
    """Unread rows. None: unknown."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""

    def after(self, before: LastMove | None, now_ms: int) -> Reading:
        """Returns the reading with a time of the last commit: where the engine shows none, the
        time at which the position was first seen."""
        if self.committed_at_ms is not None or not self.position:
            return self
        is_same = before is not None and before.position == self.position
        return replace(self, committed_at_ms=before.at_ms if is_same and before else now_ms)


@dataclass(frozen=True)
class LastMove:
    """The newest position of a job that was seen before, and when it was first seen."""

    position: str
    at_ms: int


@dataclass(frozen=True)
class StreamLimits:
    """Limits below which a job of another engine counts as healthy; None: no such check."""

    commit_age_ms: int
    lag: int | None = None
    watermark_lag_ms: int | None = None


def verdicts(reading: Reading, limits: StreamLimits, now_ms: int) -> dict[str, Health]:
    """Returns the verdict of each check that has a limit, by the check's name."""
    found = {"alive": _alive(reading, limits, now_ms)}
    if limits.lag is not None:
        found["lag"] = _lag(reading, limits.lag)
    if limits.watermark_lag_ms is not None:
        found["watermark_lag"] = _watermark_lag(reading, limits.watermark_lag_ms, now_ms)
    return found


def unreadable(why: str, limits: StreamLimits) -> dict[str, Health]:
    """Returns the verdicts on a job that cannot be read."""
    bad = Health(False, f"The job cannot be read: {why}")
    names = {"alive": True, "lag": limits.lag, "watermark_lag": limits.watermark_lag_ms}
    return {name: bad for name, limit in names.items() if limit is not None}


def _alive(reading: Reading, limits: StreamLimits, now_ms: int) -> Health:
    if not reading.is_up:
        return Health(False, f"The job does not run: {reading.state}.")
    if reading.committed_at_ms is None:
        return Health(True, f"The job is {reading.state}. It shows no commits.")
    age_ms = max(0, now_ms - reading.committed_at_ms)
    numbers = {"commit_age_seconds": age_ms / 1000}
    said = f"The job is {reading.state}. Its last commit was {age_ms / 1000:,.0f} s ago"
    if reading.is_idle:
        return Health(True, f"{said}, and it has no unread input.", numbers)
    limit = f"{limits.commit_age_ms / 1000:,.0f} s (max_commit_age)"
    if age_ms <= limits.commit_age_ms:
        return Health(True, f"{said}.", numbers)
    return Health(False, f"{said}; the limit is {limit}.", numbers)


def _lag(reading: Reading, limit: int) -> Health:
    if reading.lag is None:
        return Health(False, "The number of unread rows is not known: the source does not show it.")
    said = f"{reading.lag:,} rows are unread; the limit is {limit:,} (max_lag)."
    return Health(reading.lag <= limit, said, {"lag_rows": reading.lag})


def _watermark_lag(reading: Reading, limit_ms: int, now_ms: int) -> Health:
    if reading.watermark_ms is None:
        return Health(True, "The job has no watermark yet.")
    lag_ms = now_ms - reading.watermark_ms
    return Health(
        lag_ms <= limit_ms,
        f"Event time is {lag_ms / 1000:,.0f} s behind the clock; the limit is "
        f"{limit_ms / 1000:,.0f} s (max_watermark_lag).",
        {"lag_seconds": lag_ms / 1000},
    )
