"""The published table at a start, and how a relation in the log maps to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.connectors.postgres.pgoutput import Relation
from dagster_jet.connectors.postgres.types import spark_type
from dagster_jet.connectors.sql.place import sqlalchemy

if TYPE_CHECKING:
    from sqlalchemy import Connection

# The log does not contain values of generated columns.
_TABLES = """
select c.oid, p.schemaname || '.' || p.tablename, a.attname, a.atttypid, a.atttypmod, t.typname
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    and a.attname = any (p.attnames) and a.attgenerated = ''
left join pg_type t on t.oid = a.atttypid
where p.pubname = :publication
order by 2, a.attnum
"""


@dataclass(frozen=True)
class PublishedColumn:
    name: str
    type_oid: int
    modifier: int
    type_name: str

    @property
    def ddl(self) -> str:
        return spark_type(self.type_name, self.modifier)[0]

    @property
    def kind(self) -> pa.DataType:
        return spark_type(self.type_name, self.modifier)[1]


@dataclass(frozen=True)
class PublishedTable:
    """Table of a publication with its published columns, except generated ones."""

    oid: int
    name: str
    """`schema.table`."""
    columns: tuple[PublishedColumn, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """Column names and types as Spark sees them."""
        return tuple((column.name, column.ddl) for column in self.columns)

    def is_as(self, relation: Relation) -> bool:
        """True if the log describes exactly this table."""
        now = tuple((c.name, c.type_oid, c.modifier) for c in self.columns)
        return now == tuple((c.name, c.type_oid, c.modifier) for c in relation.columns)

    def names_of(
        self, relation: Relation, renamed: Mapping[str, str | None]
    ) -> Mapping[str, str] | None:
        """Current column names by the names in the log, without columns that were added later or
        that `renamed` maps to None. Returns None if a column of the log has no current column, or
        if the order of the columns shows that another column has taken over a name.

        Args:
            renamed: current name by former name; names that stayed are omitted.
        """
        past = [column.name for column in relation.columns]
        if past == list(self.names):
            return dict(zip(past, past, strict=True))
        today: list[str | None] = [renamed.get(name, name) for name in past]
        known = [name for name in today if name is not None]
        if len(set(known)) < len(known):
            today, known = list(past), list(past)  # the rows were written after the renaming
        # A table keeps the order of its columns and appends new ones. So a gap means that another
        # column has taken over a name, unless the user says otherwise.
        is_prefix = tuple(known) == self.names[: len(known)]
        is_in_order = [name for name in self.names if name in known] == known
        if not is_prefix and not (is_in_order and renamed.keys() & set(past)):
            return None
        return {name: now for name, now in zip(past, today, strict=True) if now is not None}


def published_tables(connection: Connection, publication: str) -> list[PublishedTable]:
    """Current tables of a publication; empty if there is no such publication."""
    asked = sqlalchemy().text(_TABLES)
    found: dict[tuple[int, str], list[PublishedColumn]] = {}
    for oid, table, *column in connection.execute(asked, {"publication": publication}):
        columns = found.setdefault((oid, table), [])
        if column[0] is not None:
            columns.append(PublishedColumn(*column))
    return [PublishedTable(oid, table, tuple(columns)) for (oid, table), columns in found.items()]
