"""The job as users' functions see it in a task: its parameters, and metrics of their own.

    job_context().parameters["limit"]
    job_context().metrics.counter("bad_rows").add()
    job_context().metrics.histogram("seconds").record(0.2)
    job_context().metrics.gauge("model_version").set(7)

A task's metrics are in memory, and its ack carries them to the driver. So they count as rows do:
once for each committed epoch, however often tasks and epochs were repeated.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from dagster_jet.core.measures import (
    GAUGE,
    SUM,
    UP_TO,
    Distribution,
    Measure,
    Measures,
    after_epoch,
    copied,
    counters_of,
    distributions_of,
    gauges_of,
)
from dagster_jet.errors import PipelineError, UserFunctionError

COUNTERS_MAX = 50
"""Counters, gauges and histograms of one stage."""
BUCKETS_MAX = 20
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 100.0, 1_000.0, 10_000.0)
"""Bounds of a histogram, for seconds, milliseconds and sizes."""
M = TypeVar("M", "Counter", "Gauge", "Histogram")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Parameters(Mapping[str, Any]):
    """The read-only parameters of a job, by name: plain values, or `Secret`s.

    Its text has no values.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            known = ", ".join(self._values) or "none"
            raise KeyError(
                f"{name!r} is not a parameter of the job; it has: {known}. Give it a value in "
                "JobConfig(parameters={...})"
            )
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self._values)})"


class Metrics:
    """Counters, gauges and histograms of one stage in one task."""

    def __init__(self, job: str | None = None, stage: str | None = None) -> None:
        self._job, self._stage = job, stage
        self._named: dict[str, Counter | Gauge | Histogram] = {}
        self._totals: dict[str, Measure] = {}
        self._is_over = False

    def counter(self, name: str) -> Counter:
        """Returns the counter of this name, which begins at 0.

        Args:
            name: lower-case letters, digits and underscores, at most 63. A stage has at most 50
                names, because each is a time series of its own: a key or an id is no name.

        Raises:
            UserFunctionError: it is not such a name, one too many, or that of another metric.

        Example:
            >>> Metrics().counter("bad_rows").add(2)
        """
        known = self._named.get(name)
        return known if isinstance(known, Counter) else self._new(Counter(self, name), 0)

    def gauge(self, name: str) -> Gauge:
        """Returns the gauge of this name. It shows the value of the newest epoch in which it was
        set; if several were set in that epoch, by tasks or rows, the largest that its tasks have
        set last.

        Args:
            name: as of a counter.

        Raises:
            UserFunctionError: as for a counter.

        Example:
            >>> Metrics().gauge("model_version").set(7)
        """
        known = self._named.get(name)
        return known if isinstance(known, Gauge) else self._new(Gauge(self, name), None)

    def histogram(self, name: str, buckets: Sequence[float] = BUCKETS) -> Histogram:
        """Returns the histogram of this name.

        Args:
            name: as of a counter.
            buckets: upper bounds, ascending, at most 20; numbers above the last one are counted,
                too. The first call of a task decides.

        Raises:
            UserFunctionError: as for a counter, or the bounds are not such numbers.

        Example:
            >>> Metrics().histogram("seconds", [0.1, 0.5, 2]).record(0.3)
        """
        known = self._named.get(name)
        if isinstance(known, Histogram):
            return known
        bounds = [float(bound) for bound in buckets]
        is_good = 0 < len(bounds) <= BUCKETS_MAX and all(map(math.isfinite, bounds))
        if not is_good or any(a >= b for a, b in pairwise(bounds)):
            raise self._error(
                f"histogram {name}",
                f"the bounds {buckets!r:.100} are no buckets: expected 1 to {BUCKETS_MAX} numbers, "
                "ascending.",
                "Choose others; nothing of this epoch was written.",
            )
        histogram = Histogram(self, name, bounds)
        return self._new(histogram, histogram.empty)

    @property
    def counted(self) -> dict[str, int]:
        """Sums so far, by counter."""
        return counters_of(self._totals)

    @property
    def gauges(self) -> dict[str, float]:
        """Last values, by gauge."""
        return gauges_of(self._totals)

    @property
    def histograms(self) -> dict[str, Distribution]:
        """Recorded values so far, by histogram."""
        return distributions_of(self._totals)

    @property
    def totals(self) -> dict[str, Measure]:
        """All so far, for an ack, and for `take_back`."""
        return copied(self._totals)

    def take_back(self, totals: Measures) -> None:
        """Returns to earlier `totals`, because calls since then do not count."""
        self._totals = copied(totals)

    def include(self, totals: Measures) -> None:
        """Adds the `totals` of other calls of the task."""
        self._totals = after_epoch(self._totals, totals)
        check_number(self._totals, self._job, self._stage)

    def add(self, name: str, number: int) -> None:
        """As `counter(name).add(number)`."""
        if type(number) is not int or number < 0 or self._is_over:
            raise self._refusal("counter", name, number, "a whole number, 0 or more")
        self._totals[name] = self._totals.get(name, 0) + number  # type: ignore[operator]

    def set(self, name: str, number: float) -> None:
        """As `gauge(name).set(number)`."""
        if not _is_number(number) or self._is_over:
            raise self._refusal("gauge", name, number, "a finite number")
        self._totals[name] = {GAUGE: number}

    def record(self, histogram: Histogram, number: float) -> None:
        """As `histogram.record(number)`."""
        if not _is_number(number) or number < 0 or self._is_over:
            expected = "a finite number, 0 or more"
            raise self._refusal("histogram", histogram.name, number, expected)
        total = self._totals.get(histogram.name)
        if not isinstance(total, dict):  # it was taken back
            total = self._totals[histogram.name] = histogram.empty
        total[SUM] += number
        total[UP_TO][histogram.bucket(number)] += 1

    def end(self) -> None:
        """Refuses what is added from now on: it would not reach the ack."""
        self._is_over = True

    def _new(self, metric: M, begins: Measure | None) -> M:
        name, kind = metric.name, type(metric).__name__.lower()
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise self._error(
                None,
                f"{name!r:.100} cannot name a {kind}: expected lower-case letters, digits and "
                "underscores, at most 63, beginning with a letter.",
                "Choose such a name; nothing of this epoch was written.",
            )
        if name in self._named:
            other = type(self._named[name]).__name__.lower()
            raise self._error(f"{kind} {name}", f"it is a {other} already.", "Use another name.")
        check_number((*self._named, name), self._job, self._stage)
        if begins is not None:
            self._totals.setdefault(name, begins)
        self._named[name] = metric
        return metric

    def _refusal(self, kind: str, name: str, number: object, expected: str) -> UserFunctionError:
        said = f"{number!r:.100} cannot be taken: expected {expected}."
        cure = "Convert it, or put it into a column of the results."
        if self._is_over:
            said = f"the {kind} belongs to a task that has ended."
            cure = "Call job_context() in each call of the function."
        return self._error(f"{kind} {name}", said, cure)

    def _error(self, position: str | None, said: str, cure: str) -> UserFunctionError:
        return UserFunctionError(
            said, job=self._job, stage=self._stage, position=position, cure=cure
        )


class Counter:
    """A number that grows."""

    __slots__ = ("_metrics", "name")

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics, self.name = metrics, name

    def add(self, number: int = 1) -> None:
        """Adds a whole number, 0 or more.

        Raises:
            UserFunctionError: it is not such a number, or the task has ended.
        """
        self._metrics.add(self.name, number)


class Gauge:
    """A number that changes."""

    __slots__ = ("_metrics", "name")

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics, self.name = metrics, name

    def set(self, number: float) -> None:
        """Sets it to a finite number.

        Raises:
            UserFunctionError: it is not such a number, or the task has ended.
        """
        self._metrics.set(self.name, number)


class Histogram:
    """Numbers, counted by size."""

    __slots__ = ("_bounds", "_metrics", "_texts", "name")

    def __init__(self, metrics: Metrics, name: str, bounds: list[float]) -> None:
        self._metrics, self.name, self._bounds = metrics, name, bounds
        self._texts = [str(bound) for bound in (*bounds, math.inf)]

    @property
    def empty(self) -> dict[str, Any]:
        """The value before anything is recorded."""
        return {SUM: 0.0, UP_TO: dict.fromkeys(self._texts, 0)}

    def bucket(self, number: float) -> str:
        """The name of the bucket of a number."""
        return self._texts[bisect_left(self._bounds, number)]

    def record(self, number: float) -> None:
        """Counts a finite number, 0 or more.

        Raises:
            UserFunctionError: it is not such a number, or the task has ended.
        """
        self._metrics.record(self, number)


def _is_number(number: object) -> bool:
    return type(number) in (int, float) and math.isfinite(number)  # type: ignore[arg-type]


def check_number(names: Iterable[str], job: str | None, stage: str | None) -> None:
    """Checks the number of a stage's counters.

    Raises:
        UserFunctionError: there are too many.
    """
    distinct = sorted(set(names))
    if len(distinct) > COUNTERS_MAX:
        raise UserFunctionError(
            f"the functions count under more than {COUNTERS_MAX} names: "
            f"{', '.join(distinct[:5])}, ...",
            job=job,
            stage=stage,
            cure="Use a few fixed names; count keys or ids in rows of a sink.",
        )


@dataclass(frozen=True)
class JobContext:
    """The job of a running task; see `job_context`."""

    job: str = "job"
    stage: str = "stage"
    parameters: Mapping[str, Any] = field(default_factory=Parameters)
    """Values of `JobConfig.parameters`, by name."""
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", Parameters(self.parameters))

    @contextmanager
    def entered(self) -> Iterator[JobContext]:
        """Makes it the context inside the block, for a test that calls a function directly."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


_current: ContextVar[JobContext | None] = ContextVar("dagster_jet job", default=None)


def job_context() -> JobContext:
    """Returns the job whose function is called: its name, parameters and metrics.

    Call it inside functions of `map_stateful` and `map_using_service`, in processors (which also
    have it as `self.context`), and in functions of `transform`, which have only the parameters.

    Metrics count as rows do. A call whose results do not count, counts nothing: a task that ran
    twice, an epoch that was repeated, a row that became a dead letter, a call that was retried.

    Raises:
        PipelineError: no job calls.

    Example:
        >>> def late_only(state, row):
        ...     context = job_context()
        ...     if row["delay"] < context.parameters["threshold"]:
        ...         return None
        ...     context.metrics.counter("late").add()
        ...     return row
    """
    context = _current.get()
    if context is None:
        raise PipelineError(
            "job_context() was called outside of a function that a job calls.",
            cure="Call it inside the function. In a test: with JobContext(...).entered(): ...",
        )
    return context


def own_metrics() -> Metrics:
    """Returns the metrics of the task; unread ones outside of a task."""
    context = _current.get()
    return Metrics() if context is None else context.metrics


def own_parameters() -> Parameters:
    """Returns the parameters of the task's job; none outside of a task."""
    context = _current.get()
    return Parameters(None if context is None else context.parameters)
