"""Batch tables for `enrich`. Connectors are imported on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_jet.core.asset_key import asset_path

if TYPE_CHECKING:
    from dagster_jet.connectors.delta import DeltaTable
    from dagster_jet.connectors.files import FilesTable
    from dagster_jet.connectors.files.formats import FileFormat
    from dagster_jet.connectors.iceberg import IcebergTable
    from dagster_jet.connectors.maps import MapTable
    from dagster_jet.connectors.sql.sql_table import SqlTable
    from dagster_jet.core.secret import Secret


def files(
    path: str,
    *,
    format: FileFormat = "parquet",
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | float | Secret] | None = None,
    shared: bool = False,
) -> FilesTable:
    """Return the rows of files as a table.

    Args:
        path: a file or folder, local (also `file:///`) or in a bucket: `s3://bucket/folder`.
        format: "json" (lines of objects), "csv" or "parquet"; read as by `sources.files`.
        schema: column names and types as DDL; by default taken from the files. A CSV file must have
            a header with these names in this order, unless `options` say otherwise
            (``{"enforceSchema": "true"}``: by position, ``{"header": "false"}``).
        options: options of Spark's reader.
        asset: the key of the table's Dagster asset ("dim/airports"), upstream of later stages.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local path is the same on every machine of a cluster.

    Raises:
        ConfigurationError: a path, format or option is not valid.

    Example:
        >>> airports = files("/dim/airports", asset="dim/airports")
    """
    from dagster_jet.connectors.files import FilesTable

    given = tuple(sorted((options or {}).items()))
    storage = tuple((storage_options or {}).items())
    return FilesTable(str(path), format, schema, given, asset_path(asset), storage, shared)


def delta(
    uri: str,
    *,
    version: int | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> DeltaTable:
    """Return a Delta Lake table, as of one version or of the newest one.

    Args:
        uri: as for `sinks.delta`.
        version: the version, which is then the same in every execution and at every refresh; by
            default the newest one at each reading.
        asset: the key of the table's Dagster asset, upstream of later stages.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: the place or an option is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> airports = delta("/lake/airports", version=12)
    """
    from dagster_jet.connectors.delta import DeltaSource, DeltaTable

    storage = tuple((storage_options or {}).items())
    source = DeltaSource(str(uri), storage_options=storage, shared=shared)
    return DeltaTable(source, version, asset_path(asset))


def iceberg(
    catalog: str,
    table: str,
    *,
    snapshot: int | None = None,
    branch: str = "main",
    catalog_options: Mapping[str, str | Secret] | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> IcebergTable:
    """Return an Iceberg table, as of one snapshot or of the newest one.

    Args:
        catalog: name of the catalog.
        table: namespace and name: "lake.airports".
        snapshot: id of the snapshot, which is then the same in every execution and at every
            refresh; by default the branch's newest one at each reading.
        branch: of the table.
        catalog_options: as for `sinks.iceberg`.
        asset: the key of the table's Dagster asset, upstream of later stages.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: an option or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> airports = iceberg("lake", "dim.airports", branch="audited")
    """
    from dagster_jet.connectors.iceberg import IcebergSource, IcebergTable
    from dagster_jet.connectors.iceberg.catalog import CatalogPlace

    source = IcebergSource(
        CatalogPlace(catalog, tuple((catalog_options or {}).items())),
        table,
        branch=branch,
        storage_options=tuple((storage_options or {}).items()),
        shared=shared,
    )
    return IcebergTable(source, snapshot, asset_path(asset))


def map(name: str, *, key: str = "key", schema: str | None = None) -> MapTable:
    """Return a map of the job's own store as a table.

    Columns: the key (text), named by `key`, then the fields of `schema`, or one column `value`.

    Args:
        name: name of the map, which must exist when the job starts.
        key: name of the key column, which `enrich(on=...)` joins on.
        schema: as for `sources.map_journal`.

    Example:
        >>> prices = map("prices", key="symbol", schema="price double")
    """
    from dagster_jet.connectors.maps import MapTable

    return MapTable(name, key, schema)


def sql(url: str | Secret, *, table: str, asset: str | Sequence[str] | None = None) -> SqlTable:
    """Return a table of a SQL database, read whole, in one query, by the driver.

    Its columns are those of the table at each reading. Times without a zone are taken as UTC. Types
    that Spark lacks become text. All rows must fit into the driver's memory.

    Args:
        url: SQLAlchemy URL of the database; a `Secret(env=...)` if it has a password.
        table: `table` or `schema.table`; also a view.
        asset: the key of the table's Dagster asset, upstream of later stages.

    Raises:
        ConfigurationError: the URL or the name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> customers = sql("postgresql://me@host/db", table="customers")
    """
    from dagster_jet.connectors.sql.place import SqlPlace
    from dagster_jet.connectors.sql.sql_table import SqlTable

    return SqlTable(SqlPlace(url, table), asset_path(asset))


__all__ = [
    "delta",
    "files",
    "iceberg",
    "map",
    "sql",
]
