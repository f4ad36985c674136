"""Compares the relations in the log with the table that is read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_jet.connectors.postgres.change_rows import Row, lsn_text
from dagster_jet.connectors.postgres.pgoutput import Relation, Transaction, Values
from dagster_jet.connectors.postgres.published_table import PublishedTable, published_tables
from dagster_jet.connectors.sql.place import sqlalchemy
from dagster_jet.errors import Reaction, SourceError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_logger = logging.getLogger(__name__)

_ROOT = "select cast(pg_partition_root(oid) as oid) from pg_class where oid = :oid"


class ChangedTableError(SourceError):
    """The table has changed since the start; the restart reads it with its new columns."""

    reaction = Reaction.RESTART


@dataclass
class Relations:
    """Relations of one execution, for its source's thread."""

    publication: str
    table: PublishedTable
    renamed: Mapping[str, str | None]
    job: str
    stage: str
    _names: dict[Relation, Mapping[str, str] | None] = field(default_factory=dict)
    """Current column names by relation of the log; None: another table, which is skipped."""

    def rows_of(self, one: Transaction, connection: Connection) -> Iterator[Row]:
        """Yields the changes of the table in a transaction.

        Raises:
            ChangedTableError: its columns have changed since the start.
            SourceError: the log has columns or tables that cannot be mapped.
        """
        last, names = None, None
        for number, change in enumerate(one.changes):
            if change.relation is not last:
                last = change.relation
                if last not in self._names:
                    self._names[last] = self._names_of(last, one.end, connection)
                names = self._names[last]
            if names is None:
                continue
            old = None if change.old is None else _named(change.old, names)
            unchanged = tuple(names[name] for name in change.unchanged if name in names)
            values = _named(change.values, names)
            yield Row(one.end, number, change.op, values, old, unchanged)

    def _names_of(
        self, relation: Relation, end: int, connection: Connection
    ) -> Mapping[str, str] | None:
        is_ours = relation.oid == self.table.oid or relation.name == self.table.name
        if is_ours and self.table.is_as(relation):
            return {name: name for name in self.table.names}
        now = published_tables(connection, self.publication)
        if not is_ours and not self._is_part(relation, connection):
            if relation.oid in {table.oid for table in now}:
                raise SourceError(
                    f"the publication {self.publication!r} has another table, {relation.name}, "
                    f"beside {self.table.name}.",
                    job=self.job,
                    stage=self.stage,
                    position=lsn_text(end),
                    cure=f"Remove it (alter publication ... drop table {relation.name}), and "
                    "read it with its own publication, slot and source. Then start the job "
                    "again: it ignores the rows of that table.",
                )
            _logger.warning(
                "job %r: %s ignores rows of %s, which was temporarily in the publication",
                self.job,
                self.stage,
                relation.name,
            )
            return None
        current = next((table for table in now if table.oid == self.table.oid), None)
        if current is None or current.shape != self.table.shape:
            raise ChangedTableError(
                f"the table {self.table.name} has changed while the job was reading it.",
                job=self.job,
                stage=self.stage,
                position=lsn_text(end),
                cure="The job starts anew by itself, with its columns of then.",
            )
        names = self.table.names_of(relation, self.renamed)
        if names is None:
            had = ", ".join(column.name for column in relation.columns)
            raise SourceError(
                f"the table {self.table.name} had the columns ({had}) when this change was made; "
                f"now it has ({', '.join(self.table.names)}).",
                job=self.job,
                stage=self.stage,
                position=lsn_text(end),
                cure="Declare what happened to the columns: postgres_changes(..., "
                'renamed={"former": "today", "dropped": None}). Also list a name that '
                "another column has now, and a name that stayed the same behind a new "
                "column.",
            )
        return names

    def _is_part(self, relation: Relation, connection: Connection) -> bool:
        """True if it is a partition of the table."""
        asked = sqlalchemy().text(_ROOT)
        root = connection.execute(asked, {"oid": relation.oid}).scalar()
        return root is not None and root == self.table.oid


def _named(values: Values, names: Mapping[str, str]) -> Values:
    return {names[name]: value for name, value in values.items() if name in names}
