"""Reader of a table by a growing column: queries rows beyond the last value, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.carried_rows import ROWS_MAX, can_be_carried, carried_frame
from dagster_jet.connectors.sql.arrow_rows import Row, arrow_table, selected
from dagster_jet.connectors.sql.column_fit import Column
from dagster_jet.connectors.sql.failures import as_source_errors
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.contract import Lag, SourceFrame, SourceReader, SplitParameters
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlalchemy import Connection

_PAGE = 10_000


@dataclass
class TableRowsReader(SourceReader):
    """Reader of one execution. `_seen` belongs to the source's own thread."""

    place: SqlPlace
    column: str
    columns: Sequence[Column]
    job: str
    stage: str
    _waiting: deque[Row] = field(default_factory=deque)
    _last: Any = None
    """Value of the last planned row."""
    _seen: Any = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _connection: Connection | None = None

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        """
        Raises:
            SourceError: the position is one of another table or column.
        """
        value = position["last"]
        now = self._where
        before = {name: position.get(name, now[name]) for name in now}  # old positions lack them
        if before != now and value is not None:
            raise SourceError(
                f"the snapshot has read the table {before['table']!r} by its column "
                f"{before['column']!r} up to {value}, and the source now reads "
                f"{now['table']!r} by {now['column']!r}: rows up to that value would be skipped.",
                job=self.job,
                stage=self.stage,
                position=str(value),
                cure="Give the source another name, with which it begins anew.",
            )
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        self._last = self._seen = value

    def poll(self) -> list[Row]:
        """Returns all new rows, so that a job that ends with its input reads to the end."""
        found: list[Row] = []
        at, seen = self._at, self._seen
        with as_source_errors(self.place, self.job, self.stage):
            try:
                while len(page := self._page(seen)) == _PAGE:
                    found += page
                    seen = page[-1][at]
            except BaseException:
                self.close()
                raise
        found += page
        self._seen = found[-1][at] if found else seen
        return found

    def _page(self, seen: Any) -> list[Row]:
        if self._connection is None:
            self._connection = self._stack.enter_context(self.place.connected(autocommit=True))
        table, chosen = selected(self._connection, self.place, self.columns)
        by = table.c[self.column]
        # A null is never greater than another value.
        beyond = by.is_not(None) if seen is None else by > seen
        asked = sqlalchemy().select(*chosen).where(beyond).order_by(by).limit(_PAGE)
        return [tuple(row) for row in self._connection.execute(asked)]

    @property
    def _at(self) -> int:
        """Index of the growing column."""
        return [column.name for column in self.columns].index(self.column)

    def close(self) -> None:
        self._connection = None
        with suppress(Exception):  # this connection may be the one that has failed
            self._stack.close()

    def accept(self, found: Sequence[Row]) -> None:
        self._waiting.extend(found)

    def waiting(self) -> Lag:
        return Lag(len(self._waiting), {"rows": len(self._waiting)})

    def plan(self, max_rows: int) -> tuple[Row, ...] | None:
        count = min(len(self._waiting), max(1, max_rows))
        taken = tuple(self._waiting.popleft() for _ in range(count))
        if not taken:
            return None
        self._last = taken[-1][self._at]
        return taken

    def frame(self, spark: SparkSession, split: tuple[Row, ...]) -> SourceFrame:
        return SourceFrame(spark.createDataFrame(self.table(split)))

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], pa.Table], partitions: int
    ) -> SourceFrame | None:
        rows = carried_frame(spark, split, self.table(()), self.stage)
        return None if rows is None else SourceFrame(rows)

    def split_parameters(self, split: tuple[Row, ...]) -> SplitParameters | None:
        if len(split) > ROWS_MAX:
            return None
        rows = self.table(split)
        return SplitParameters(rows) if can_be_carried(rows) else None

    def table(self, rows: Sequence[Row]) -> pa.Table:
        return arrow_table(self.columns, rows, self.place, self.job, self.stage)

    def position(self) -> dict[str, Any]:
        last = self._last
        return {"last": last.isoformat() if isinstance(last, datetime) else last, **self._where}

    @property
    def _where(self) -> dict[str, str]:
        return {"table": self.place.table, "column": self.column}
