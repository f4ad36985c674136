"""Values of users' counters, gauges and histograms, and how those of several tasks are combined.

A value is what JSON can hold, because acks, manifests and reports carry it:

    counter    12
    gauge      {"gauge": 0.5}
    histogram  {"sum": 30.5, "le": {"5.0": 3, "inf": 1}}      # numbers up to a bound, by bound
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Measure: TypeAlias = "int | dict[str, Any]"
Measures: TypeAlias = Mapping[str, Measure]
"""By name."""
GAUGE, SUM, UP_TO = "gauge", "sum", "le"


@dataclass(frozen=True)
class Distribution:
    """Numbers that a histogram has recorded."""

    count: int
    sum: float
    buckets: Mapping[float, int]
    """How many were at most the bound, and above the bound before, by bound; the last is inf."""

    @property
    def mean(self) -> float:
        """The mean; 0 if there are none."""
        return self.sum / self.count if self.count else 0.0


def combined(*measures: Measures) -> dict[str, Measure]:
    """Combines the values of one epoch's tasks: sums, and the largest value of each gauge."""
    total: dict[str, Measure] = {}
    for one in measures:
        for name, measure in one.items():
            total[name] = _both(total[name], measure) if name in total else measure
    return total


def after_epoch(total: Measures, epoch: Measures) -> dict[str, Measure]:
    """Totals after an epoch: sums, and the epoch's value of each gauge that it has set."""
    gauges = gauges_of(epoch)
    return combined({n: m for n, m in total.items() if n not in gauges}, epoch)


def counters_of(measures: Measures) -> dict[str, int]:
    return {name: measure for name, measure in measures.items() if isinstance(measure, int)}


def measured_of(measures: Measures) -> dict[str, dict[str, Any]]:
    """The gauges and histograms, as JSON."""
    return {name: measure for name, measure in measures.items() if isinstance(measure, dict)}


def gauges_of(measures: Measures) -> dict[str, float]:
    return {n: m[GAUGE] for n, m in measured_of(measures).items() if GAUGE in m}


def distributions_of(measures: Measures) -> dict[str, Distribution]:
    return {
        name: Distribution(
            sum(measure[UP_TO].values()),
            measure[SUM],
            {bound: measure[UP_TO][text] for bound, text in _by_bound(measure)},
        )
        for name, measure in measured_of(measures).items()
        if UP_TO in measure
    }


def copied(measures: Measures) -> dict[str, Measure]:
    """A copy that later recordings do not change."""
    return {
        name: {**m, UP_TO: dict(m[UP_TO])} if isinstance(m, dict) and UP_TO in m else m
        for name, m in measures.items()
    }


def _by_bound(histogram: Mapping[str, Any]) -> list[tuple[float, str]]:
    return sorted((float(text), text) for text in histogram[UP_TO])


def _both(one: Measure, other: Measure) -> Measure:
    """Combines two values; if their kinds differ, the newer one wins."""
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        if GAUGE in one:
            return {GAUGE: max(one[GAUGE], other[GAUGE])}
        bounds = {**one[UP_TO], **other[UP_TO]}
        numbers = {b: one[UP_TO].get(b, 0) + other[UP_TO].get(b, 0) for b in bounds}
        return {SUM: one[SUM] + other[SUM], UP_TO: numbers}
    return other
