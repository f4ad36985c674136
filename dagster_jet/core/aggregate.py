"""Definitions of aggregates: frozen data, without the computation.

The computation of a definition, its partials and its finalizer are in the operators
(`operators/aggregates/computation.py`), so that writing a pipeline loads neither Arrow nor numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dagster_jet.core.state_format import StateFormat


@dataclass(frozen=True)
class Aggregate(ABC):
    """One output column of a stage. Created by `dagster_jet.aggregates`."""

    column: str | None
    """The input column, or an SQL expression over the rows' columns; None: whole rows."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """All columns and expressions that it is computed from."""
        return () if self.column is None else (self.column,)

    @property
    @abstractmethod
    def name(self) -> str:
        """Display name with parameters."""


class SimpleKind(Enum):
    """Aggregates that need only a name and a column."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    COUNT_DISTINCT = "count_distinct"
    FIRST = "first"
    LAST = "last"
    COLLECT_LIST = "collect_list"
    COLLECT_SET = "collect_set"
    MODE = "mode"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"
    STDDEV = "stddev"
    VARIANCE = "variance"


@dataclass(frozen=True)
class SimpleAggregate(Aggregate):
    """An aggregate without parameters."""

    kind: SimpleKind

    @property
    def name(self) -> str:
        return self.kind.value


@dataclass(frozen=True)
class DistinctSketch(Aggregate):
    """Approximate number of distinct values."""

    lg_k: int

    @property
    def name(self) -> str:
        return f"approx_count_distinct({self.lg_k})"


@dataclass(frozen=True)
class Quantile(Aggregate):
    """Approximate value below which `fraction` of the values lie."""

    fraction: float
    k: int

    @property
    def name(self) -> str:
        return f"quantile({self.fraction})"


@dataclass(frozen=True)
class Ranked(Aggregate):
    """An aggregate of pairs of a value and another column."""

    rank: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (*super().inputs, self.rank)


@dataclass(frozen=True)
class ExtremeBy(Ranked):
    """The value with the highest or the lowest rank."""

    greatest: bool

    @property
    def name(self) -> str:
        return f"{'max' if self.greatest else 'min'}_by({self.rank})"


@dataclass(frozen=True)
class Correlation(Ranked):
    """Pearson's correlation of the column with `rank`."""

    @property
    def name(self) -> str:
        return f"corr({self.rank})"


@dataclass(frozen=True)
class TopN(Ranked):
    """The `n` values with the highest or the lowest rank."""

    n: int
    smallest: bool

    @property
    def name(self) -> str:
        return f"top_n({self.n},{self.rank},{'smallest' if self.smallest else 'largest'})"


@dataclass(frozen=True)
class CustomAggregate(Aggregate):
    """An aggregate defined by four user functions."""

    columns: tuple[str, ...]
    create: Callable[[], Any]
    accumulate: Callable[[Any, dict[str, Any]], Any]
    combine: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    result_type: Any
    """An Arrow type, or one of `RESULT_TYPES`."""
    saved_as: StateFormat

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.columns

    @property
    def name(self) -> str:
        return "custom"


RESULT_TYPES = ("boolean", "int", "bigint", "double", "string", "binary", "date", "timestamp")
"""Result types that a custom aggregate may name."""
