"""Commits an epoch without the rows that its table refuses; only the database knows which.

Halves of the rows are tried in savepoints, recursively, until each refused row is isolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.sql.failures import ErrorKind, error_kind, sentence
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.refused_values import refused_row
from dagster_jet.connectors.sql.row_writer import write_rows
from dagster_jet.contract import Refused

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass
class Trying:
    """Writes rows within the caller's transaction."""

    connection: Connection
    place: SqlPlace
    mode: str
    key: Sequence[str]
    leaves_out: frozenset[ErrorKind]
    """Kinds of errors for which a row may be left out; others are raised."""
    refused: list[Refused] = field(default_factory=list)

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            self._write(batch)

    def _write(self, rows: pa.RecordBatch) -> None:
        try:
            with self.connection.begin_nested():
                write_rows(self.connection, self.place, self.mode, self.key, [rows])
        except Exception as error:
            if error_kind(error) not in self.leaves_out:
                raise
            if rows.num_rows == 1:
                why = sentence(error, self.place)
                self.refused.append(refused_row(self.place, self.key, rows, 0, why))
                return
            half = rows.num_rows // 2
            self._write(rows.slice(0, half))
            self._write(rows.slice(half))
