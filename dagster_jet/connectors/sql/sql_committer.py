"""Phase 2 of a table: writes an epoch's rows and its marker in one database transaction.

The transaction first locks the sink's row in `dagster_jet_epochs` (`markers.py`). So an execution
that was believed dead and its successor commit one after the other, and the second finds the epoch
committed. The marker also shows whether a commit succeeded whose connection broke.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.change_columns import table_columns
from dagster_jet.connectors.owned_rows import OwnedRows
from dagster_jet.connectors.sql.failures import ErrorKind, as_sink_errors, set_back
from dagster_jet.connectors.sql.kept_connection import KeptConnection
from dagster_jet.connectors.sql.markers import EPOCHS, REFUSED, REPEATABLE, Fence, Markers, Owner
from dagster_jet.connectors.sql.mirror import Mirror
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.connectors.sql.refused_rows import Trying
from dagster_jet.connectors.sql.rights import create_markers
from dagster_jet.connectors.sql.row_writer import write_rows
from dagster_jet.connectors.sql.table_creation import created
from dagster_jet.connectors.sql.table_shape import shape_of
from dagster_jet.connectors.staged_rows import staged_rows
from dagster_jet.connectors.staging import (
    Segment,
    StoreArea,
    remove_orphans,
    segments_by_epoch,
)
from dagster_jet.contract import CommitContext, Committer
from dagster_jet.errors import ArtifactLostError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass
class SqlCommitter(Committer):
    """Committer of one execution; its commits share a connection."""

    place: SqlPlace
    mode: str
    key: tuple[str, ...]
    creates_table: bool
    area: StoreArea
    owner: Owner
    _kept: KeptConnection = field(init=False)
    _newest: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    """By id of a row in `dagster_jet_epochs`: (timeline, epoch) as this execution has last found or
    left it. A lower value belongs to a database that came back older."""

    def __post_init__(self) -> None:
        self._kept = KeptConnection(self.place)

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        if not artifacts:
            return
        epochs = segments_by_epoch(self.area, artifacts)
        is_mirror = self.mode == "mirror"
        errors = as_sink_errors(self.place, context.job, context.sink, may_leave_out=not is_mirror)
        markers, refused = Markers(self.place), context.refused
        leaves_out = refused is not None and refused.may_leave_out
        with errors, self._kept.connected() as connection:
            names = {EPOCHS, *[REFUSED] * leaves_out} - self._kept.found
            if names:
                create_markers(connection, markers, context.job, context.sink, *sorted(names))
                self._kept.found |= names
            for epoch_id, segments in epochs:
                self._commit_epoch(connection, epoch_id, segments, context)
            if leaves_out or (context.recovering and not markers.missing(connection, REFUSED)):
                self._deliver_refused(connection, context)
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
            if found is None or found < (line, newest):
                return False
            self._newest[fence.id] = found
            return True

    def _fence(self, context: CommitContext) -> tuple[Fence, int]:
        """The sink's row, and the value of its `timeline` column."""
        line = context.execution_id if context.repeatable else context.timeline
        id = self.owner.id(REPEATABLE if context.repeatable else "")
        return Fence(Markers(self.place), self.owner, id), line

    def _commit_epoch(
        self,
        connection: Connection,
        epoch_id: int,
        segments: Sequence[Segment],
        context: CommitContext,
    ) -> None:
        fence, line = self._fence(context)
        if fence.id not in self._kept.found:
            fence.ensure(connection)
            self._kept.found.add(fence.id)
        rows = staged_rows(segments, context)
        if self.creates_table:
            rows = self._with_table(connection, rows)
        fail_point("sql.commit.before")
        with connection.begin():
            found = fence.lock(connection)
            if found < (before := self._newest.get(fence.id, found)):
                raise set_back(self.place, f"epoch {before[1]}", context.job, context.sink)
            if found >= (line, epoch_id):
                self._newest[fence.id] = found
                return
            fail_point("sql.commit.fenced")
            self._write(connection, fence, epoch_id, rows, context)
            fail_point("sql.commit.rows")
            fence.move(connection, line, epoch_id)
        self._newest[fence.id] = line, epoch_id
        fail_point("sql.commit.after")

    def _write(
        self,
        connection: Connection,
        fence: Fence,
        epoch_id: int,
        rows: Iterator[pa.RecordBatch],
        context: CommitContext,
    ) -> None:
        """Writes all rows, or those that the table takes together with a memo of the others."""
        refused = context.refused
        if self.mode == "mirror":
            owner = self.owner
            Mirror(connection, self.place, self.key, owner.job, owner.sink).apply(rows)
            return
        if refused is None or not refused.may_leave_out:
            write_rows(connection, self.place, self.mode, self.key, rows)
            return
        kinds = {ErrorKind.VALUE} | (
            {ErrorKind.REFERENCE} if refused.references_will_not_come else set()
        )
        trying = Trying(connection, self.place, self.mode, self.key, frozenset(kinds))
        trying.write(rows)
        if trying.refused:
            memo = refused.stage(epoch_id, trying.refused)
            table = Markers(self.place).tables()[REFUSED]
            connection.execute(table.insert().values(id=fence.id, epoch=epoch_id, memo=memo))

    def _deliver_refused(self, connection: Connection, context: CommitContext) -> None:
        """Delivers the refused rows of epochs committed without them, by any execution."""
        assert context.refused is not None
        table, (fence, _) = Markers(self.place).tables()[REFUSED], self._fence(context)
        mine = table.c.id == fence.id
        connection.rollback()  # querying the table has begun a transaction
        asked = sqlalchemy().select(table.c.epoch, table.c.memo).where(mine)
        with connection.begin():
            memos = connection.execute(asked.order_by(table.c.epoch)).all()
        for epoch_id, memo in memos:
            fail_point("sql.refused.deliver")
            context.refused.deliver(memo)
            fail_point("sql.refused.delivered")
            with connection.begin():
                connection.execute(table.delete().where(mine, table.c.epoch == epoch_id))

    def _with_table(
        self, connection: Connection, rows: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Creates the table before the first rows, in a transaction of its own."""
        if shape_of(connection, self.place) is not None:
            connection.rollback()
            return rows
        connection.rollback()
        try:
            first = next(rows, None)
        except ArtifactLostError as lost:
            return _lost(lost)  # raised only if the fence shows that the epoch is not committed
        if first is None:
            return rows
        with connection.begin():
            columns = table_columns(first.schema) if self.mode == "mirror" else first.schema
            connection.execute(created(self.place, columns, self.key, connection))
        return _chained(first, rows)

    def give_up_place(self, context: CommitContext) -> bool:
        errors = as_sink_errors(self.place, context.job, context.sink)
        with errors, self.place.connected() as connection:
            if not Markers(self.place).missing(connection, EPOCHS):
                connection.rollback()
                with connection.begin():
                    for id in (self.owner.id(), self.owner.id(REPEATABLE)):
                        Fence(Markers(self.place), self.owner, id).remove(connection)
        return True

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        return remove_orphans(self.area, context.execution_id, keep)

    def close(self) -> None:
        self._kept.close()


@dataclass
class OwningSqlCommitter(SqlCommitter):
    """Committer of a job whose rows are told from others' by values of columns."""

    owns: OwnedRows

    def remove_output(self, context: CommitContext) -> bool:
        sql = sqlalchemy()
        table = self.place.clause(*(name for name, _ in self.owns))
        plain = sql.types.NullType()  # the database reads a text as the column's type
        ours = [
            table.c[name] == sql.bindparam(None, value, type_=plain) for name, value in self.owns
        ]
        errors = as_sink_errors(self.place, context.job, context.sink)
        with errors, self.place.connected() as connection:
            if shape_of(connection, self.place) is not None:
                connection.rollback()  # querying the table has begun a transaction
                with connection.begin():
                    connection.execute(table.delete().where(*ours))
        return True


def _lost(error: ArtifactLostError) -> Iterator[pa.RecordBatch]:
    """Raises the error once rows are asked for."""
    raise error
    yield


def _chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others
