"""The job as users' functions see it in a task: its parameters, and counters to add to.

    job_context().parameters["limit"]
    job_context().metrics.counter("bad_rows").add()

A task's counters are in memory, and its ack carries them to the driver. So a counter is counted as
rows are: once for each committed epoch, however often tasks and epochs were repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from dagster_jet.errors import PipelineError, UserFunctionError

COUNTERS_MAX = 50
"""Counters of one stage."""
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
    """Counters of one stage in one task."""

    def __init__(self, job: str | None = None, stage: str | None = None) -> None:
        self._job, self._stage = job, stage
        self._counters: dict[str, Counter] = {}
        self._totals: dict[str, int] = {}
        self._is_over = False

    def counter(self, name: str) -> Counter:
        """Returns the counter of this name, which begins at 0.

        Args:
            name: lower-case letters, digits and underscores, at most 63. A stage has at most 50
                counters, because each is a time series of its own: a key or an id is no name.

        Raises:
            UserFunctionError: it is not such a name, or one too many.

        Example:
            >>> Metrics().counter("bad_rows").add(2)
        """
        known = self._counters.get(name)
        return self._new(name) if known is None else known

    @property
    def counted(self) -> dict[str, int]:
        """What was added so far, by counter."""
        return dict(self._totals)

    def take_back(self, counted: Mapping[str, int]) -> None:
        """Returns to an earlier `counted`, because calls since then do not count."""
        self._totals = dict(counted)

    def add(self, name: str, number: int) -> None:
        """As `counter(name).add(number)`."""
        if type(number) is not int or number < 0 or self._is_over:
            raise self._refusal(name, number)
        self._totals[name] = self._totals.get(name, 0) + number

    def end(self) -> None:
        """Refuses what is added from now on: it would not reach the ack."""
        self._is_over = True

    def _new(self, name: str) -> Counter:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserFunctionError(
                f"{name!r:.100} cannot name a counter: expected lower-case letters, digits and "
                "underscores, at most 63, beginning with a letter.",
                job=self._job,
                stage=self._stage,
                cure="Choose such a name; nothing of this epoch was written.",
            )
        check_number((*self._counters, name), self._job, self._stage)
        self._totals.setdefault(name, 0)
        self._counters[name] = Counter(self, name)
        return self._counters[name]

    def _refusal(self, name: str, number: object) -> UserFunctionError:
        said = f"{number!r:.100} cannot be added: expected a whole number, 0 or more."
        cure = "Add int(...) of it, or put it into a column of the results."
        if self._is_over:
            said = "the counter belongs to a task that has ended."
            cure = "Call job_context() in each call of the function."
        where = f"counter {name}"
        return UserFunctionError(said, job=self._job, stage=self._stage, position=where, cure=cure)


class Counter:
    """A number that grows."""

    __slots__ = ("_metrics", "_name")

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics, self._name = metrics, name

    def add(self, number: int = 1) -> None:
        """Adds a whole number, 0 or more.

        Raises:
            UserFunctionError: it is not such a number, or the task has ended.
        """
        self._metrics.add(self._name, number)


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
    """Returns the job whose function is called: its name, parameters and counters.

    Call it inside functions of `map_stateful` and `map_using_service`, in processors (which also
    have it as `self.context`), and in functions of `transform`, which have only the parameters.

    Counters count as rows do. A call whose results do not count, counts nothing: a task that ran
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
    """Returns the counters of the task; unread ones outside of a task."""
    context = _current.get()
    return Metrics() if context is None else context.metrics


def own_parameters() -> Parameters:
    """Returns the parameters of the task's job; none outside of a task."""
    context = _current.get()
    return Parameters(None if context is None else context.parameters)
