"""A source of numbered rows that come at a rate: row n is always the same row.

The position is the number of the next row, and when the first one came. Nothing has to be kept, and
nothing can be lost: what was read before a crash is made again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dagster_jet.connectors.contract import BadRowRule, Lag, SourceFrame, SourceReader
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_TASK = 10_000
"""Fewer are made in one task."""


class Numbered(Protocol):
    """A definition whose rows can be made from their numbers."""

    @property
    def count(self) -> int | None:
        """How many rows there are; None: no end."""
        ...

    @property
    def rate(self) -> float | None:
        """Rows per second; None: all are there from the start."""
        ...

    @property
    def bytes_per_row(self) -> int | None: ...

    def frames(
        self, spark: SparkSession, numbers: range, start_ms: int, bad_rows: BadRowRule | None
    ) -> SourceFrame:
        """Rows by their numbers. `start_ms`: when row 0 came."""
        ...

    def first_bad(self, spark: SparkSession, numbers: range) -> str | None:
        """Which of them does not fit the schema."""
        ...


@dataclass
class NumberedReader(SourceReader):
    """The driver's side: which rows have come, and which were read."""

    source: Numbered
    bad_rows: BadRowRule | None = None
    _next: int = 0
    _come: int = 0
    _start_ms: int | None = None

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._next, self._start_ms = position["next"], position["start_ms"]

    def poll(self) -> int:
        return time.time_ns() // 1_000_000

    def accept(self, found: int) -> None:
        if self._start_ms is None:
            self._start_ms = found
        count, rate = self.source.count, self.source.rate
        if rate is None:
            assert count is not None, "the definition has refused rows without end at once"
            come = count
        else:
            # Row 0 comes at the start. A clock that goes back takes nothing away.
            come = max(0, int((found - self._start_ms) * rate / 1000) + 1)
            come = come if count is None else min(come, count)
        self._come = max(self._come, come)

    def waiting(self) -> Lag:
        rows = max(0, self._come - self._next)
        size = self.source.bytes_per_row
        return Lag(rows, {"rows": rows}, None if size is None else rows * size)

    def plan(self, max_rows: int) -> range | None:
        taken = range(self._next, min(self._come, self._next + max(1, max_rows)))
        if not taken:
            return None
        self._next = taken.stop
        return taken

    def frame(self, spark: SparkSession, split: range) -> SourceFrame:
        assert self._start_ms is not None, "rows have come"
        return self.source.frames(spark, split, self._start_ms, self.bad_rows)

    def verify(self, split: range, rows: int) -> None:
        """Nobody else could have changed them."""

    def locate_bad_row(self, spark: SparkSession, split: range) -> str | None:
        return self.source.first_bad(spark, split)

    def position(self) -> dict[str, Any]:
        return {"next": self._next, "start_ms": self._start_ms}


def tasks_for(spark: SparkSession, numbers: range) -> int:
    """How many tasks make these rows."""
    wanted = -(-len(numbers) // ROWS_PER_TASK)
    return max(1, min(int(spark.sparkContext.defaultParallelism), wanted))


def checked_rate(rate: float | None, count: int | None) -> None:
    """Raises `ConfigurationError` for a rate that is none, and for rows without end all at once."""
    if rate is not None and not rate > 0:
        raise ConfigurationError(
            f"rate: {rate} is not more than 0.", cure="Give rows per second, for example 1_000."
        )
    if count is not None and count < 0:
        raise ConfigurationError(f"count: {count} is less than 0.")
    if rate is None and count is None:
        raise ConfigurationError(
            "rate: without a rate all rows are there at once, so there must be an end.",
            cure="Give a rate in rows per second, or how many rows there are.",
        )
