"""Converts dates of Parquet files written in the calendar of Spark 2: Julian before 1582-10-15.

The metadata of the footer tells, as it does to Spark's own reader (`DataSourceUtils`). Times before
1900 are refused: their conversion depends on the time zone of the writer, which Spark 2 does not
note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from dagster_jet.connectors.files.parquet_columns import UnfitError
from dagster_jet.connectors.files.parquet_schema import SPARKS_OWN

_SPARK_VERSION = b"org.apache.spark.version"
_OLD_DATES = b"org.apache.spark.legacyDateTime"
_OLD_INT96 = b"org.apache.spark.legacyINT96"
_NEW_DATES = date(1582, 10, 15)
_NEW_TIMES = datetime(1900, 1, 1)
_BEGINS = np.array(
    (
        *(-719164, -682945, -646420, -609895, -536845, -500320, -463795, -390745, -354220),
        *(-317695, -244645, -208120, -171595, -141427),
    )
)
"""First days, since 1970, of the spans of time in which both calendars differ by as many days."""
_SHIFTS = np.array((2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0), np.int32)


@dataclass(frozen=True)
class OldCalendar:
    """Whether dates and times of a file are in the old calendar."""

    dates: bool
    times: bool

    @classmethod
    def of(cls, footer: pyarrow.parquet.FileMetaData) -> OldCalendar:
        said = footer.metadata or {}
        # Spark wrote its schema, but no version, before 2.4.6.
        version = said.get(_SPARK_VERSION, b"" if SPARKS_OWN in said else None)
        dates = _OLD_DATES in said or (version is not None and version < b"3.0.0")
        int96 = _OLD_INT96 in said or (version is not None and version < b"3.1.0")
        if int96 != dates:
            columns = map(footer.schema.column, range(len(footer.schema)))
            has_int96 = any(column.physical_type == "INT96" for column in columns)
            return cls(dates, int96 if has_int96 else dates)
        return cls(dates, dates)

    def converted(self, column: pa.Array, name: str) -> pa.Array:
        """Returns the column in the new calendar.

        Raises:
            UnfitError: a value cannot be converted.
        """
        if self.dates and pa.types.is_date32(column.type):
            return _converted(column, name)
        if self.dates or self.times:
            self._check(column, name)
        return column

    def _check(self, column: pa.Array, name: str) -> None:
        for part in _parts(column):
            self._check(part, name)
        bound: date | None = None
        if pa.types.is_date(column.type):
            bound = _NEW_DATES if self.dates else None
        elif pa.types.is_timestamp(column.type):
            bound = _NEW_TIMES if self.times else None
        if bound and pc.any(pc.less(column, pa.scalar(bound, column.type))).as_py():
            raise UnfitError(
                f"{name} has values before {bound:%Y-%m-%d} in the calendar of Spark 2; read the "
                f"file with Spark and write it anew"
            )


def _parts(column: pa.Array) -> Sequence[pa.Array]:
    if pa.types.is_map(column.type):
        return [column.keys, column.items]
    if pa.types.is_struct(column.type):
        return list(column.flatten())
    return [column.flatten()] if pa.types.is_nested(column.type) else []


def _converted(column: pa.Array, name: str) -> pa.Array:
    days = column.cast(pa.int32())
    spans = np.searchsorted(_BEGINS, days.fill_null(0).to_numpy(), side="right") - 1
    if np.any(spans < 0):
        raise UnfitError(f"{name} has dates before the year 1")
    return pc.add(days, pa.array(_SHIFTS[spans])).cast(pa.date32())
