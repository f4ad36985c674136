"""Ratios of rounds: medians, and a 95 % interval of the mean log ratio."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, two-sided 95 %, by degrees of freedom; beyond the table the normal value is close.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Ratio:
    """Median of the rounds' ratios; the interval says whether it is distinguishable from 1."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio(numerators: Sequence[Sequence[float]], denominators: Sequence[Sequence[float]]) -> Ratio:
    """One entry per round, each with that round's slots (averaged geometrically)."""
    logs = [
        statistics.mean(map(math.log, a)) - statistics.mean(map(math.log, b))
        for a, b in zip(numerators, denominators, strict=True)
        if a and b
    ]
    if not logs:
        return Ratio(math.nan, math.nan, math.nan, 0)
    middle = statistics.mean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(middle), 0.0, math.inf, 1)
    t = _T[min(len(logs) - 2, len(_T) - 1)]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(
        math.exp(statistics.median(logs)),
        math.exp(middle - half),
        math.exp(middle + half),
        len(logs),
    )
