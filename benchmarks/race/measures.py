"""Figures from times: rates, percentiles, sweeps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_ENOUGH = 0.25
"""Least share of the events that must come after a rate's first commit: few commits tell no
rate."""


@dataclass(frozen=True)
class Rates:
    """Events per second, and when the first row came."""

    first_row_s: float
    """Seconds from the start of the process to its first committed row."""
    total: float
    """All events, from the start of the process to the last committed row."""
    steady: float
    """Rate from the first committed row to the last."""
    marginal: float
    """Rate from the first row that shows half of the events passed, to the last one."""


def rates(started_at: float, progress: Sequence[tuple[float, float]], events: int) -> Rates:
    """Args: progress: (time, events passed) at each look that found committed rows, in order."""
    first_at, last_at = progress[0][0], progress[-1][0]
    half = next((look for look in progress if look[1] >= events / 2), progress[-1])

    def rate(since: tuple[float, float]) -> float:
        seconds, more = last_at - since[0], events - since[1]
        return more / seconds if seconds > 0 and more >= events * _ENOUGH else math.nan

    return Rates(
        first_row_s=first_at - started_at,
        total=events / (last_at - started_at),
        steady=rate(progress[0]),
        marginal=rate(half),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latencies(
    rows: Iterable[tuple[float, float]], scheduled_from: float, scheduled_to: float
) -> list[float]:
    """Seconds from *scheduled* emission to committed row.

    An emission that came late because the machine was busy is not later for that: the wait counts.

    Args:
        rows: (when the row was seen committed, when the last event it needs was to be emitted).
        scheduled_from, scheduled_to: emissions that count.
    """
    return [
        seen - scheduled for seen, scheduled in rows if scheduled_from <= scheduled < scheduled_to
    ]


def best_setting(tried: Mapping[str, float]) -> str:
    """The setting with the highest rate; of equal ones the first. nan: not measured."""
    measured = {name: rate for name, rate in tried.items() if not math.isnan(rate)}
    return max(measured or tried, key=lambda name: (measured or {}).get(name, 0.0))


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values if value > 0 and not math.isnan(value)]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
