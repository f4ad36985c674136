"""Source of numbered rows at a rate; a number always gives the same row.

The position is the number of the next row, the rate, and the arrival time of the first row at that
rate. Nothing is stored and nothing can be lost: rows read before a crash are generated again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dagster_jet.contract import BadRowRule, Lag, SourceFrame, SourceReader, SplitParameters
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_TASK = 10_000
"""Maximum number of rows for which one task is enough."""


class Numbered(Protocol):
    """Definition of a source that generates rows from their numbers."""

    @property
    def count(self) -> int | None:
        """Number of rows; None: unbounded."""
        ...

    @property
    def rate(self) -> float | None:
        """Rows per second; None: all are available from the start."""
        ...

    @property
    def bytes_per_row(self) -> int | None: ...

    def frames(
        self, spark: SparkSession, numbers: range, start_ms: int, bad_rows: BadRowRule | None
    ) -> SourceFrame:
        """Generates rows. `start_ms` is the arrival time of row 0."""
        ...

    def prepared(
        self, spark: SparkSession, numbers: Callable[[], range], start_ms: int
    ) -> SourceFrame | None:
        """The same for the numbers that its one task looks up when it runs; None: the plan depends
        on the numbers."""
        ...

    def first_bad(self, spark: SparkSession, numbers: range) -> str | None:
        """Returns the first row that does not fit the schema, or None."""
        ...


@dataclass
class NumberedReader(SourceReader):
    """Reader that tracks which rows have arrived and which are read."""

    source: Numbered
    bad_rows: BadRowRule | None = None
    _next: int = 0
    _come: int = 0
    _start_ms: int | None = None

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._next, self._start_ms = position["next"], position["start_ms"]
        rate = self.source.rate
        before = position.get("rate", rate)
        if self._start_ms is not None and before != rate:
            # The next row arrives when it was due, and later ones at the new rate.
            self._start_ms += round(self._next * (_ms_per_row(before) - _ms_per_row(rate)))

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
            # Row 0 arrives at the start. A clock that goes back removes no row.
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

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], range], partitions: int
    ) -> SourceFrame | None:
        assert self._start_ms is not None, "rows have come"
        return self.source.prepared(spark, split, self._start_ms)

    def split_parameters(self, split: range) -> SplitParameters:
        return SplitParameters(split)

    def locate_bad_row(self, spark: SparkSession, split: range) -> str | None:
        return self.source.first_bad(spark, split)

    def position(self) -> dict[str, Any]:
        return {"next": self._next, "start_ms": self._start_ms, "rate": self.source.rate}


def tasks_for(spark: SparkSession, numbers: range) -> int:
    """Number of tasks that generate these rows."""
    wanted = -(-len(numbers) // ROWS_PER_TASK)
    return max(1, min(int(spark.sparkContext.defaultParallelism), wanted))


def _ms_per_row(rate: float | None) -> float:
    return 0.0 if rate is None else 1000 / rate


def checked_rate(rate: float | None, count: int | None) -> None:
    """Raises `ConfigurationError` for a rate that is not positive, or unbounded without a rate."""
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
