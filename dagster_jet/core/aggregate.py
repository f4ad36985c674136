"""Aggregates as users define them: frozen data that names what is to be computed.

How a definition is computed, from which partials and by which finalizer, is the operators' business
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
    """One output column of a stage. Made by `dagster_jet.aggregates`."""

    column: str | None
    """The input column; None: of whole rows."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it computes, with what parameters: for people."""


class SimpleKind(Enum):
    """An aggregate that its name and its column define."""

    COUNT = "count"
    SUM = "sum"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    COUNT_DISTINCT = "count_distinct"
    FIRST = "first"
    LAST = "last"
    COLLECT_LIST = "collect_list"


@dataclass(frozen=True)
class SimpleAggregate(Aggregate):
    """Without parameters."""

    kind: SimpleKind

    @property
    def name(self) -> str:
        return self.kind.value


@dataclass(frozen=True)
class DistinctSketch(Aggregate):
    """About how many different values."""

    lg_k: int

    @property
    def name(self) -> str:
        return f"approx_count_distinct({self.lg_k})"


@dataclass(frozen=True)
class Quantile(Aggregate):
    """About the value below which `fraction` of the values lie."""

    fraction: float
    k: int

    @property
    def name(self) -> str:
        return f"quantile({self.fraction})"


@dataclass(frozen=True)
class TopN(Aggregate):
    """The `n` values of the highest rank, or of the lowest."""

    rank: str
    n: int
    smallest: bool

    @property
    def name(self) -> str:
        return f"top_n({self.n},{self.rank},{'smallest' if self.smallest else 'largest'})"


@dataclass(frozen=True)
class CustomAggregate(Aggregate):
    """A user's four functions."""

    columns: tuple[str, ...]
    create: Callable[[], Any]
    accumulate: Callable[[Any, dict[str, Any]], Any]
    combine: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    result_type: Any
    """An Arrow type, or one of `RESULT_TYPES`."""
    saved_as: StateFormat

    @property
    def name(self) -> str:
        return "custom"


RESULT_TYPES = ("boolean", "int", "bigint", "double", "string", "binary", "date", "timestamp")
"""Result types that a custom aggregate may name."""
