"""Users' functions as a source: ranges of offsets, each read as a DataFrame of any format.

The position is the end of the last range. Offsets are the user's; the engine keeps them as JSON and
compares them. Rows are read by Spark's tasks; the driver sees offsets only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from dagster_jet.contract import BadRowRule, Lag, Source, SourceFrame, SourceReader
from dagster_jet.core.function_name import class_name, function_name
from dagster_jet.errors import (
    ConfigurationError,
    JetError,
    Reaction,
    SourceError,
    SourceUnavailableError,
    where_raised,
)
from dagster_jet.system.transient import is_transient

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ReadRange: TypeAlias = Callable[[Any, Any, Any], Any]
"""(Spark session, start, end) -> DataFrame with the rows of (start, end]; start None: all up to
the end."""
LatestOffset: TypeAlias = Callable[[], Any]
"""() -> newest offset; None: there is none yet."""
LimitOffset: TypeAlias = Callable[[Any, Any, int], Any]
"""(start, newest offset, number of rows wanted) -> end of the next range."""

_UNKNOWN_ROWS = 1_000_000
"""Backlog assumed if offsets are not numbers: enough for several tasks, and for the largest epoch.
"""


@dataclass(frozen=True)
class FromBatches(Source):
    """Reads ranges of offsets by a user's function."""

    read: ReadRange
    schema: str
    latest_offset: LatestOffset
    limit_offset: LimitOffset | None = None
    runs_users_plans = True

    def __post_init__(self) -> None:
        for name in ("read", "latest_offset", "limit_offset"):
            function = getattr(self, name)
            if not callable(function) and (name, function) != ("limit_offset", None):
                raise ConfigurationError(f"{name}: {function!r} cannot be called.")

    def describe(self) -> dict[str, str]:
        return {"kind": "from_batches", "function": function_name(self.read)}

    def row_schema(self) -> str:
        return self.schema

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> RangeReader:
        """No row is bad: columns have types."""
        return RangeReader(self, job, stage)


@dataclass(frozen=True)
class OffsetRange:
    """The offsets after `start` up to `end`; `start` None: from the beginning."""

    start: Any
    end: Any

    def __str__(self) -> str:
        return f"({self.start!r}, {self.end!r}]"


@dataclass
class RangeReader(SourceReader):
    """Reader of one execution."""

    source: FromBatches
    job: str
    stage: str
    _end: Any = None
    """End of the last planned range."""
    _latest: Any = None
    _rows_per_offset: float | None = None
    """The most that a range of this execution had, if offsets are numbers."""

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._end = position["end"]

    def position(self) -> dict[str, Any]:
        return {"end": self._end}

    def poll(self) -> Any:
        return self._offset(self.source.latest_offset)

    def accept(self, found: Any) -> None:
        if found is None:
            return
        if _is_less(found, self._end):
            raise self._wrong(
                self.source.latest_offset,
                f"returned {found!r}, which is less than {self._end!r}, up to which the job has "
                "read",
                "Offsets only grow. Digits in a text are compared from the left: pad them with "
                "zeros, or use a number. If the input was set back, bring it forward again, or "
                "read it with a job of another name.",
            )
        self._latest = found

    def waiting(self) -> Lag:
        waits = self._latest is not None and self._latest != self._end
        return Lag(self._rows_expected() if waits else 0, {"ranges": int(waits)})

    def _rows_expected(self) -> int:
        """As many per offset as the densest range had: small epochs then run in one task."""
        width = _width(self._end, self._latest)
        if width is None or self._rows_per_offset is None:
            return _UNKNOWN_ROWS
        return max(1, round(width * self._rows_per_offset))

    def verify(self, split: OffsetRange, rows: int) -> None:
        width = _width(split.start, split.end)
        if width is not None:
            self._rows_per_offset = max(self._rows_per_offset or 0.0, rows / width)

    def plan(self, max_rows: int) -> OffsetRange | None:
        if not self.waiting().items:
            return None
        start = self._end
        self._end = self._latest if self.source.limit_offset is None else self._limited(max_rows)
        return OffsetRange(start, self._end)

    def _limited(self, max_rows: int) -> Any:
        limit, start, latest = self.source.limit_offset, self._end, self._latest
        assert limit is not None
        end = self._offset(limit, start, latest, max_rows)
        if end is None or end == start or _is_less(end, start) or _is_less(latest, end):
            raise self._wrong(
                limit,
                f"returned {end!r} for a range that begins after {start!r}; the newest offset is "
                f"{latest!r}",
                "Return an offset after the first argument, at most the second one.",
            )
        return end

    def frame(self, spark: SparkSession, split: OffsetRange) -> SourceFrame:
        from pyspark.sql import DataFrame

        read = self.source.read
        rows = self._call(read, spark, split.start, split.end)
        if not isinstance(rows, DataFrame):
            raise self._wrong(
                read,
                f"returned {class_name(rows)}, not a DataFrame of Spark, for {split}",
                "Return the rows as a Spark DataFrame.",
            )
        return SourceFrame(rows)

    def locate_row(
        self, spark: SparkSession, split: OffsetRange, is_meant: Callable[[DataFrame], Column]
    ) -> str | None:
        rows = self.frame(spark, split).rows
        found = rows.where(is_meant(rows)).head()
        return None if found is None else f"{split}: {found.asDict(recursive=True)}"

    # --- the user's functions ---

    def _offset(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function that returns an offset, and checks that JSON keeps it."""
        offset = self._call(function, *arguments)
        try:
            is_kept = json.loads(json.dumps(offset)) == offset
        except (TypeError, ValueError):
            is_kept = False
        if not is_kept:
            raise self._wrong(
                function,
                f"returned {offset!r}, which JSON does not keep as it is",
                "Return a number, a text, or a list or dictionary of these: a time as its "
                "isoformat(), for example.",
            )
        return offset

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except JetError:
            raise
        except Exception as error:
            said = str(error).partition("JVM stacktrace:")[0].strip()
            is_passing = isinstance(error, OSError) and is_transient(error)
            kind = SourceUnavailableError if is_passing else SourceError
            name = f"{where_raised(error)}{function_name(function)}"
            raised = kind(
                f"{name} raised {type(error).__name__}: {said}.",
                job=self.job,
                stage=self.stage,
                cure="Correct the function or the system that it calls. Nothing is lost: the job "
                "goes on after its last snapshot.",
            )
            if not is_passing:
                raised.reaction = Reaction.RESTART
            raise raised from error

    def _wrong(self, function: Callable[..., Any], what: str, cure: str) -> SourceError:
        text = f"{function_name(function)} {what}."
        return SourceError(text, job=self.job, stage=self.stage, cure=cure)


def _width(start: Any, end: Any) -> float | None:
    """The number of offsets in a range; None if they are no numbers."""
    are_numbers = type(start) in (int, float) and type(end) in (int, float)
    return float(end - start) if are_numbers and end > start else None


def _is_less(one: Any, other: Any) -> bool:
    """Whether Python can compare the offsets, and the first one is less."""
    try:
        return bool(one < other)
    except TypeError:
        return False
