"""The published table as it is at a start, and whether what the log says of it fits."""

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

# Values of generated columns are not in the log.
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
    """A column of the table."""

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
    """A table of a publication, with the columns that are published and not generated."""

    oid: int
    name: str
    """`schema.table`."""
    columns: tuple[PublishedColumn, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """What Spark sees of it."""
        return tuple((column.name, column.ddl) for column in self.columns)

    def is_as(self, relation: Relation) -> bool:
        """Whether the log describes exactly this table."""
        now = tuple((c.name, c.type_oid, c.modifier) for c in self.columns)
        return now == tuple((c.name, c.type_oid, c.modifier) for c in relation.columns)

    def names_of(
        self, relation: Relation, renamed: Mapping[str, str | None]
    ) -> Mapping[str, str] | None:
        """The column's name today, by its name in the log. Columns that the log does not have yet
        are left out, as are those that `renamed` has as None. None: some column of the log has no
        column today, or the order of the columns says that a name went from one to another.

        Args:
            renamed: by former name, the name today; a name that stayed is its own.
        """
        past = [column.name for column in relation.columns]
        if past == list(self.names):
            return dict(zip(past, past, strict=True))
        today: list[str | None] = [renamed.get(name, name) for name in past]
        known = [name for name in today if name is not None]
        if len(set(known)) < len(known):
            today, known = list(past), list(past)  # these rows are of the time after the change
        # A table keeps the order of its columns, and new ones are the last: a gap says that a name
        # was given to another column, unless the user knows better.
        is_prefix = tuple(known) == self.names[: len(known)]
        is_in_order = [name for name in self.names if name in known] == known
        if not is_prefix and not (is_in_order and renamed.keys() & set(past)):
            return None
        return {name: now for name, now in zip(past, today, strict=True) if now is not None}


def published_tables(connection: Connection, publication: str) -> list[PublishedTable]:
    """The tables of a publication as they are now; none where there is no such publication."""
    asked = sqlalchemy().text(_TABLES)
    found: dict[tuple[int, str], list[PublishedColumn]] = {}
    for oid, table, *column in connection.execute(asked, {"publication": publication}):
        columns = found.setdefault((oid, table), [])
        if column[0] is not None:
            columns.append(PublishedColumn(*column))
    return [PublishedTable(oid, table, tuple(columns)) for (oid, table), columns in found.items()]
