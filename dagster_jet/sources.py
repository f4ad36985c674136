"""Where streams come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_jet.connectors.files import FilesSource, FilesTable
from dagster_jet.connectors.maps import MapEntriesSource, MapJournalSource, MapTable


def files(
    path: str,
    *,
    format: str,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
) -> FilesSource:
    """Finished files in a folder, in order of (modification time, name).

    Args:
        path: a local folder, or a glob pattern; also as `file:///` URL. A relative one is of the
            folder in which the pipeline is built. Which files were read is known by their absolute
            paths.
        format: "json" (one object per line), "csv" or "parquet".
        schema: column names and types as DDL: "id long, at timestamp".
        options: for Spark's reader, for example ``{"header": "true"}``.
    """
    return FilesSource(str(path), format, schema, tuple(sorted((options or {}).items())))


def map_journal(name: str, *, schema: str | None = None, start: str = "oldest") -> MapJournalSource:
    """The changes of a map of the job's own store, from its journal; replayable.

    Columns: kind ("put" or "delete"), key (text; keys of other types as JSON), value (null for a
    delete), partition, sequence, timestamp. In order per partition, so per key. Events that the
    journal drops before they are read are counted as lost and told.

    Args:
        name: the map's; it must exist and have a journal.
        schema: of JSON values, as DDL: an object's fields ("price double, at timestamp"), or one
            type ("double"). By default `value` is the JSON text, or the bytes of other formats.
        start: where a new job begins: "oldest" event that is there, or "newest": what comes next.
    """
    return MapJournalSource(name, schema, start)


def map_entries(name: str, *, schema: str | None = None) -> MapEntriesSource:
    """What a map of the job's own store holds, read once: a bounded source.

    Columns: key (text; keys of other types as JSON), value. Each partition is read as it is at
    that moment; what changes later is not seen.

    Args:
        name: the map's; it must exist.
        schema: as for `map_journal`.
    """
    return MapEntriesSource(name, schema)


def map_table(name: str, *, key: str = "key", schema: str | None = None) -> MapTable:
    """A map of the job's own store as a table to enrich a stream with.

    Columns: the key (text) under the name `key`, then the value: the fields of `schema`, or one
    column `value`.

    Args:
        name: the map's; it must exist.
        key: the name of the key's column, which `enrich(on=...)` joins on.
        schema: as for `map_journal`.
    """
    return MapTable(name, key, schema)


def table(
    path: str,
    *,
    format: str = "parquet",
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    asset: str | Sequence[str] | None = None,
) -> FilesTable:
    """A batch table to enrich a stream with.

    Args:
        path: a local file or folder; also as `file:///` URL.
        schema: column names and types as DDL; by default what the files say. A CSV file must have a
            header with these names in this order, unless `options` say otherwise
            (``{"enforceSchema": "true"}``: by position, ``{"header": "false"}``).
        options: for Spark's reader.
        asset: the key of the Dagster asset that this table is ("dim/airports"): the stages behind
            depend on it in the lineage.
    """
    path_of_key = tuple(asset.split("/")) if isinstance(asset, str) else tuple(asset or ())
    return FilesTable(
        str(path), format, schema, tuple(sorted((options or {}).items())), path_of_key
    )
