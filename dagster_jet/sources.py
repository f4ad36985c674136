"""Where streams come from. A connector is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from dagster_jet.connectors.files import FilesSource, FilesTable
    from dagster_jet.connectors.maps import MapEntriesSource, MapJournalSource, MapTable
    from dagster_jet.core.secret import Secret

Format: TypeAlias = Literal["json", "csv", "parquet"]


def files(
    path: str,
    *,
    format: Format,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> FilesSource:
    """Return a source that reads the finished files of a folder, by modification time, then name.

    A file must be complete when it appears: write it elsewhere on the same file system, then
    rename it.

    Args:
        path: a folder, or a glob pattern: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`. A relative path is made absolute when the pipeline is built. A
            file that was read is known by its absolute path.
        format: "json" (one object per line), "csv" or "parquet".
        schema: column names and types as DDL: "id long, at timestamp". Parquet files need none:
            the first file that is there at the start decides, and all others must agree.
        options: for Spark's reader, for example ``{"header": "true"}``.
        storage_options: of a bucket, as for `sinks.files`.
        shared: a local folder is the same one on every machine of a cluster.

    Raises:
        ConfigurationError: a path, format or option is not known, or the schema is missing.

    Example:
        >>> flights = files("/in", format="json", schema="origin string, at timestamp")
    """
    from dagster_jet.connectors.files import FilesSource

    given = tuple(sorted((options or {}).items()))
    storage = tuple((storage_options or {}).items())
    return FilesSource(str(path), format, schema, given, storage, shared)


def map_journal(
    name: str, *, schema: str | None = None, start: Literal["oldest", "newest"] = "oldest"
) -> MapJournalSource:
    """Return a source of the changes of a map of the job's own store, read from its journal.

    Columns: kind ("put" or "delete"), key (text; keys of other types as JSON), value (null for a
    delete), partition, sequence, timestamp. Rows of one partition, so also of one key, come in
    order. Events that the journal drops before they are read are counted as lost, and the event
    `ItemsLost` reports them.

    Args:
        name: of the map; it must exist and have a journal when the job starts.
        schema: of JSON values, as DDL: an object's fields ("price double, at timestamp"), or one
            type ("double"). By default `value` is the JSON text, or the bytes of other formats.
        start: where a new job begins: at the "oldest" event that is still there, or at the
            "newest", so that it reads only what comes next.

    Example:
        >>> changes = map_journal("prices", schema="price double", start="newest")
    """
    from dagster_jet.connectors.maps import MapJournalSource

    return MapJournalSource(name, schema, start)


def map_entries(name: str, *, schema: str | None = None) -> MapEntriesSource:
    """Return a source that reads the content of a map of the job's own store once, and ends.

    Columns: key (text; keys of other types as JSON), value. Each partition is read as it is at
    that moment; later changes are not seen.

    Args:
        name: of the map; it must exist when the job starts.
        schema: as for `map_journal`.

    Example:
        >>> prices = map_entries("prices", schema="price double")
    """
    from dagster_jet.connectors.maps import MapEntriesSource

    return MapEntriesSource(name, schema)


def map_table(name: str, *, key: str = "key", schema: str | None = None) -> MapTable:
    """Return a map of the job's own store as a table, for `enrich`.

    Columns: the key (text) under the name `key`, then the value: the fields of `schema`, or one
    column `value`.

    Args:
        name: of the map; it must exist when the job starts.
        key: the name of the key's column, which `enrich(on=...)` joins on.
        schema: as for `map_journal`.

    Example:
        >>> prices = map_table("prices", key="symbol", schema="price double")
    """
    from dagster_jet.connectors.maps import MapTable

    return MapTable(name, key, schema)


def table(
    path: str,
    *,
    format: Format = "parquet",
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> FilesTable:
    """Return a batch table of files, for `enrich`.

    Args:
        path: a file or folder: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`.
        format: "json" (one object per line), "csv" or "parquet".
        schema: column names and types as DDL; by default those of the files. A CSV file must have a
            header with these names in this order, unless `options` say otherwise
            (``{"enforceSchema": "true"}``: by position, ``{"header": "false"}``).
        options: for Spark's reader.
        asset: the key of the Dagster asset that this table is ("dim/airports"); later stages depend
            on it in the lineage.
        storage_options: of a bucket, as for `sinks.files`.
        shared: a local path is the same one on every machine of a cluster.

    Raises:
        ConfigurationError: a path, format or option is not known.

    Example:
        >>> airports = table("/dim/airports", asset="dim/airports")
    """
    from dagster_jet.connectors.files import FilesTable

    path_of_key = tuple(asset.split("/")) if isinstance(asset, str) else tuple(asset or ())
    given = tuple(sorted((options or {}).items()))
    storage = tuple((storage_options or {}).items())
    return FilesTable(str(path), format, schema, given, path_of_key, storage, shared)
