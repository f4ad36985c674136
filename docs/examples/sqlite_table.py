"""A table of an SQLite file as a sink, exactly once: rows are staged, then inserted with a marker.

create table jet_epochs (job, sink, timeline, epoch, execution,
primary key (job, sink, timeline, epoch, execution)) is made by the sink; the table itself is the
user's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dagster_jet import Artifact, ArtifactLostError, Reaction
from dagster_jet.connector_kit import (
    FolderArea,
    RowsWriter,
    Segment,
    SegmentWriter,
    remove_orphans,
    rows_of,
    segments_by_epoch,
)
from dagster_jet.contract import CommitContext, Committer, Sink, TransactionId


@dataclass(frozen=True)
class SqliteTable(Sink):
    """What users write. `staging`: a folder of this sink's own that all machines share."""

    path: str
    table: str
    staging: str

    def describe(self) -> dict[str, str]:
        return {"kind": "sqlite_table", "path": self.path, "table": self.table}

    def takes(self, schema: pa.Schema) -> bool:
        return True

    def render(self, frame: Any) -> Any:
        return frame

    def open_writer(self, transaction: TransactionId) -> RowsWriter:
        return RowsWriter(SegmentWriter(self.area, transaction, self.table))

    def open_committer(self, job: str, stage: str) -> Committer:
        return TableCommitter(self)

    @property
    def area(self) -> FolderArea:
        return FolderArea(self.staging)

    def destination(self) -> dict[str, Any]:
        return {"path": self.path, "table": self.table, "staging": self.staging}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> SqliteTable:
        return cls(destination["path"], destination["table"], destination["staging"])


@dataclass
class TableCommitter(Committer):
    """Inserts an epoch's rows and its marker in one transaction, unless the marker is there."""

    sink: SqliteTable

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        for epoch_id, segments in segments_by_epoch(self.sink.area, artifacts):
            self._commit_epoch(epoch_id, segments, context)
            for segment in segments:
                segment.remove()

    def _commit_epoch(self, epoch_id: int, segments: list[Segment], context: CommitContext) -> None:
        execution_id = context.execution_id if context.repeatable else 0
        marker = (context.job, context.sink, context.timeline, epoch_id, execution_id)
        database = sqlite3.connect(self.sink.path, timeout=1, isolation_level=None)
        try:
            database.execute("begin immediate")  # from here on nobody else commits
            database.execute(
                "create table if not exists jet_epochs (job, sink, timeline, epoch, execution, "
                "primary key (job, sink, timeline, epoch, execution))"
            )
            if not database.execute(
                "select 1 from jet_epochs where (job, sink, timeline, epoch, execution) = "
                "(?, ?, ?, ?, ?)",
                marker,
            ).fetchone():
                for segment in segments:
                    self._insert(database, segment, context)
                database.execute("insert into jet_epochs values (?, ?, ?, ?, ?)", marker)
            database.execute("commit")
        finally:
            database.close()  # what is not committed is rolled back

    def _insert(
        self, database: sqlite3.Connection, segment: Segment, context: CommitContext
    ) -> None:
        try:
            batches = list(rows_of([segment]))  # whole and checked before the first is inserted
        except ArtifactLostError:
            if not context.accept_loss:
                raise
            context.report_lost(segment.artifact)
            return
        for batch in batches:
            places = ", ".join("?" * batch.num_columns)
            names = ", ".join(f'"{name}"' for name in batch.schema.names)
            rows = [[_plain(value) for value in row.values()] for row in batch.to_pylist()]
            database.executemany(
                f'insert into "{self.sink.table}" ({names}) values ({places})', rows
            )

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        return remove_orphans(self.sink.area, context.execution_id, keep)

    def reaction(self, error: Exception) -> Reaction:
        """Locked, full, or not to be opened now: it is tried again. Else a person is needed."""
        passing = isinstance(error, sqlite3.OperationalError | OSError)
        return Reaction.RETRY if passing else Reaction.FAIL


def _plain(value: Any) -> Any:
    """As SQLite keeps it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | list | dict) else value
