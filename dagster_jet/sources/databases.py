"""Sources of the rows and changes of database tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_jet.core.asset_key import asset_path

if TYPE_CHECKING:
    from dagster_jet.connectors.postgres import ChangesSource
    from dagster_jet.connectors.sql.table_rows import TableRowsSource
    from dagster_jet.core.secret import Secret


def postgres_changes(
    url: str | Secret,
    *,
    slot: str,
    publication: str,
    renamed: Mapping[str, str | None] | None = None,
    asset: str | Sequence[str] | None = None,
) -> ChangesSource:
    """Return a source of the changes of a PostgreSQL table, exactly once, by logical decoding.

    Columns: ``op`` ("insert", "update", "delete" or "truncate"), then the table's columns, without
    generated ones, as of the start of the job. A deleted row has the columns of the table's replica
    identity, by default its primary key; the others are null. Times without a zone are taken as
    UTC. Types that Spark lacks become text. Transactions are read in sequence, their rows in order.

    Additional columns: ``_lsn bigint`` (the position after the transaction's commit) and
    ``_row bigint`` (the change's number in its transaction), which together increase from row to
    row. ``_old struct<...>`` has the columns before an update as far as the log contains them: the
    old key if it changed, or all columns with ``replica identity full``.
    ``_unchanged array<string>`` names large columns that an update did not change; they are null,
    as the log lacks them.

    Args:
        url: database URL; a `Secret(env=...)` if it has a password. The user needs REPLICATION.
        slot: name of a logical replication slot used by this job only. A missing slot is created;
            changes committed after that are read.
        publication: name of a publication of one table: ``create publication p for table t``.
        renamed: columns that were renamed or dropped while the job was down: current name by former
            name; None leaves the values out.
        asset: the key of the table's Dagster asset.

    Raises:
        ConfigurationError: the URL or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> orders = postgres_changes("postgresql://me@host/db", slot="jet", publication="orders")
    """
    from dagster_jet.connectors.postgres import ChangesSource
    from dagster_jet.connectors.sql.place import SqlPlace

    place = SqlPlace(url, publication or "publication")
    pairs = tuple((renamed or {}).items())
    return ChangesSource(place, slot, publication, pairs, asset_key=asset_path(asset))


def sql(
    url: str | Secret, *, table: str, column: str, asset: str | Sequence[str] | None = None
) -> TableRowsSource:
    """Return a source of the new rows of a table of any SQL database, by an increasing column.

    Each row that it sees is read exactly once, with its values at that time. Updates and deletions
    are not seen, nor is a row that is committed after a row with a higher value was read: sequence
    numbers are assigned before the commit. Use it for tables with a single appending writer;
    otherwise use `postgres_changes`.

    Args:
        url: SQLAlchemy URL of the database; a `Secret(env=...)` if it has a password.
        table: `table` or `schema.table`; its columns as of the start of the job are read. Types
            that Spark lacks become text.
        column: a column of whole numbers or times, with its own unique index.
        asset: the key of the table's Dagster asset.

    Raises:
        ConfigurationError: the URL or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> orders = sql("postgresql://me@host/db", table="orders", column="id")
    """
    from dagster_jet.connectors.sql.place import SqlPlace
    from dagster_jet.connectors.sql.table_rows import TableRowsSource

    return TableRowsSource(SqlPlace(url, table), column, asset_key=asset_path(asset))
