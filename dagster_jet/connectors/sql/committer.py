"""Phase 2 of a table: an epoch's rows and its marker in one transaction of the database.

The transaction first locks the sink's row in `dagster_jet_epochs` (`markers.py`). So an execution
that was believed dead, and its successor, commit one after the other, and the second one finds the
epoch done. Whether a commit whose connection broke has happened is found out in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.contract import CommitContext, Committer
from dagster_jet.connectors.sql.columns import created, shape_of
from dagster_jet.connectors.sql.failures import as_sink_errors
from dagster_jet.connectors.sql.markers import EPOCHS, Fence, Markers, Owner
from dagster_jet.connectors.sql.mirror import Mirror, table_columns
from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.rows import write_rows
from dagster_jet.connectors.staging import (
    Segment,
    StoreArea,
    remove_orphans,
    rows_of,
    segments_by_epoch,
)
from dagster_jet.errors import ArtifactLostError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass
class SqlCommitter(Committer):
    """Commits for one execution; connects for every commit."""

    place: SqlPlace
    mode: str
    key: tuple[str, ...]
    creates_table: bool
    area: StoreArea
    owner: Owner

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        if not artifacts:
            return
        epochs = segments_by_epoch(self.area, artifacts)
        errors = as_sink_errors(self.place, context.job, context.sink)
        with errors, self.place.connected() as connection:
            Markers(self.place).create(connection, EPOCHS)
            for epoch_id, segments in epochs:
                self._commit_epoch(connection, epoch_id, segments, context)
        for _, segments in epochs:
            for segment in segments:
                segment.remove()

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        newest = max((artifact.epoch_id for artifact in artifacts), default=0)
        errors = as_sink_errors(self.place, context.job, context.sink)
        with errors, self.place.connected() as connection:
            if Markers(self.place).missing(connection, EPOCHS):
                return False
            fence, line = self._fence(context)
            found = fence.read(connection)
            return found is not None and found >= (line, newest)

    def _fence(self, context: CommitContext) -> tuple[Fence, int]:
        """The sink's row, and what stands in it as its timeline."""
        line = context.execution_id if context.repeatable else context.timeline
        id = self.owner.id("repeatable" if context.repeatable else "")
        return Fence(Markers(self.place), self.owner, id), line

    def _commit_epoch(
        self,
        connection: Connection,
        epoch_id: int,
        segments: Sequence[Segment],
        context: CommitContext,
    ) -> None:
        fence, line = self._fence(context)
        fence.ensure(connection)
        rows = self._rows(segments, context)
        if self.creates_table:
            rows = self._with_table(connection, rows)
        fail_point("sql.commit.before")
        with connection.begin():
            if fence.lock(connection) >= (line, epoch_id):
                return
            fail_point("sql.commit.fenced")
            if self.mode == "mirror":
                owner = self.owner
                Mirror(connection, self.place, self.key, owner.job, owner.sink).apply(rows)
            else:
                write_rows(connection, self.place, self.mode, self.key, rows)
            fail_point("sql.commit.rows")
            fence.move(connection, line, epoch_id)
        fail_point("sql.commit.after")

    def _rows(
        self, segments: Sequence[Segment], context: CommitContext
    ) -> Iterator[pa.RecordBatch]:
        for segment in segments:
            try:
                # All of a segment is checked before any of it counts: the transaction ends later.
                yield from rows_of([segment])
            except ArtifactLostError:
                if not context.accept_loss:
                    raise
                context.report_lost(segment.artifact)

    def _with_table(
        self, connection: Connection, rows: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The table is created before the first rows, outside their transaction."""
        if shape_of(connection, self.place) is not None:
            connection.rollback()
            return rows
        connection.rollback()
        try:
            first = next(rows, None)
        except ArtifactLostError:
            return rows  # the epoch is done, or it is told once the fence is locked
        if first is None:
            return rows
        with connection.begin():
            columns = table_columns(first.schema) if self.mode == "mirror" else first.schema
            connection.execute(created(self.place, columns, self.key, connection))
        return _chained(first, rows)

    def give_up_place(self, context: CommitContext) -> None:
        errors = as_sink_errors(self.place, context.job, context.sink)
        with errors, self.place.connected() as connection:
            if Markers(self.place).missing(connection, EPOCHS):
                return
            connection.rollback()
            with connection.begin():
                for id in (self.owner.id(), self.owner.id("repeatable")):
                    Fence(Markers(self.place), self.owner, id).remove(connection)

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        return remove_orphans(self.area, context.execution_id, keep)


def _chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others
