"""Sources of files in folders, and of the rows of lake tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from dagster_jet.core.asset_key import asset_path

if TYPE_CHECKING:
    from dagster_jet.connectors.delta import DeltaSource
    from dagster_jet.connectors.files import FilesSource
    from dagster_jet.connectors.files.file_metadata import FileColumn
    from dagster_jet.connectors.files.formats import FileFormat
    from dagster_jet.connectors.iceberg import IcebergSource
    from dagster_jet.core.durations import Duration
    from dagster_jet.core.secret import Secret


def files(
    path: str,
    *,
    format: FileFormat,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    recursive: bool = False,
    metadata: Sequence[FileColumn] = (),
    after_commit: Literal["delete", "archive"] | None = None,
    archive: str | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | float | Secret] | None = None,
    shared: bool = False,
    remember: Duration = "7 days",
    max_file_age: Duration | None = None,
) -> FilesSource:
    """Return a source that reads the complete files of a folder, by modification time, then name.

    A file must be complete when it appears: write it elsewhere on the file system, then rename it.

    Args:
        path: a folder, or a glob pattern: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`. A relative path is made absolute when the pipeline is built. Files
            that were read are identified by their absolute paths.
        format: "json" (lines of objects), "csv" or "parquet".
        schema: column names and types as DDL: "id long, at timestamp". The header of a CSV file
            must have these names in this order, unless `options` say otherwise
            (``{"enforceSchema": "true"}``: by position). Optional for Parquet: the first file found
            at the start defines it, and all others must match.
        options: options of Spark's reader, for example ``{"header": "true"}``.
        recursive: whether to read the files of subfolders, too, except hidden and temporary ones.
        metadata: columns about the file of each row, behind those of the schema: "file_path",
            "file_name", "file_size" (bytes), "file_modification_time".
        after_commit: what happens to a file once a committed snapshot has all of its rows: "delete"
            removes it, "archive" moves it into `archive`. A file that was replaced meanwhile stays.
            After a crash the next start goes on. No other job may need the files. Needs `schema`.
        archive: folder on the same file system, which this source does not read.
        asset: the key of the Dagster asset that writes these files ("raw/flights"), for lineage.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.
        remember: how long a file is remembered after it was read and has disappeared. During that
            time it is not read again if it comes back. A new file that is as old as forgotten files
            fails the job, because it may have been read before.
        max_file_age: for folders from which nothing is deleted: older files, by modification time,
            are neither remembered nor read. By default unlimited.

    Raises:
        ConfigurationError: a path, format or option is not valid, or the schema is missing.

    Example:
        >>> flights = files("/in", format="json", schema="origin string, at timestamp")
        >>> once = files("/in", format="parquet", schema="origin string", after_commit="delete")
    """
    from dagster_jet.connectors.files import FilesSource
    from dagster_jet.core.durations import to_ms

    return FilesSource(
        str(path),
        format,
        schema,
        tuple(sorted((options or {}).items())),
        tuple((storage_options or {}).items()),
        shared,
        asset_path(asset),
        remember_ms=to_ms(remember, "remember"),
        max_file_age_ms=None if max_file_age is None else to_ms(max_file_age, "max_file_age"),
        recursive=recursive,
        metadata=tuple(metadata),
        after_commit=after_commit,
        archive=archive,
    )


def delta(
    uri: str,
    *,
    start: Literal["earliest", "latest"] | int | datetime = "earliest",
    deletes: Literal["stop", "skip"] = "stop",
    changes: bool = False,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> DeltaSource:
    """Return a source of the rows that are appended to a Delta Lake table, version by version.

    The driver lists the files that each version adds; tasks read their rows. Compaction adds none.
    The log and the files have to be kept for longer than a job can be down.

    Args:
        uri: the table's folder, as for `sinks.delta`. It must exist at the start, whose columns
            count: a column that the table gets later is read after the next start.
        start: start position of a new job: "earliest" reads the table's contents first, in epochs
            of bounded size, "latest" only later versions; a version reads it and later ones; a time
            (with a zone) the versions of that time and later.
        deletes: what to do at a version that updates or deletes rows: "stop" fails the job, "skip"
            leaves it out whole.
        changes: whether to read the table's change data feed (`delta.enableChangeDataFeed`): rows
            that are inserted, updated and deleted, with the columns `_change_type` (insert, delete,
            update_preimage, update_postimage), `_commit_version` and `_commit_timestamp`. The
            contents that a new job reads first are insertions.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: the place or an option is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> flights = delta("/lake/flights", start="latest")
    """
    from dagster_jet.connectors.delta import DeltaSource

    storage = tuple((storage_options or {}).items())
    return DeltaSource(str(uri), start, deletes, storage, shared, changes=changes)


def iceberg(
    catalog: str,
    table: str,
    *,
    start: Literal["earliest", "latest"] | int | datetime = "earliest",
    deletes: Literal["stop", "skip"] = "stop",
    branch: str = "main",
    tag: bool = True,
    catalog_options: Mapping[str, str | Secret] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> IcebergSource:
    """Return a source of the rows that are appended to an Iceberg table, snapshot by snapshot.

    The driver lists the files that each snapshot adds; tasks read their rows. Compaction adds none.

    Args:
        catalog: name of the catalog, as for `sinks.iceberg`.
        table: namespace and name of the table, such as "lake.flights". It must exist at the start,
            whose columns count: a column that the table gets later is read after the next start.
        start: start position of a new job: "earliest" reads the table's contents first, in epochs
            of bounded size, "latest" only later snapshots; the id of a snapshot reads it and later
            ones; a time (with a zone) the snapshots of that time and later.
        deletes: what to do at a snapshot that updates or deletes rows: "stop" fails the job, "skip"
            leaves it out whole.
        branch: of the table.
        tag: whether a tag of the table keeps the snapshot that the job goes on from after a
            restart. The catalog then has to let the job write. Otherwise snapshots have to be kept
            for longer than a job can be down.
        catalog_options: as for `sinks.iceberg`.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: an option or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> place = {"type": "sql", "uri": "sqlite:////lake/c.db", "warehouse": "/lake"}
        >>> flights = iceberg("lake", "flights.late", start="latest", catalog_options=place)
    """
    from dagster_jet.connectors.iceberg import IcebergSource
    from dagster_jet.connectors.iceberg.catalog import CatalogPlace

    place = CatalogPlace(catalog, tuple((catalog_options or {}).items()))
    storage = tuple((storage_options or {}).items())
    return IcebergSource(place, table, start, deletes, branch, tag, storage, shared)
