"""Sources of the maps of the job's own store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dagster_jet.connectors.maps import MapEntriesSource, MapJournalSource


def map_entries(name: str, *, schema: str | None = None) -> MapEntriesSource:
    """Return a source that reads the content of a map of the job's own store once, and ends.

    Columns: key (text; keys of other types as JSON), value. Each partition is read once, as it is
    at that time; later changes are not seen.

    Args:
        name: name of the map, which must exist when the job starts.
        schema: as for `map_journal`.

    Example:
        >>> prices = map_entries("prices", schema="price double")
    """
    from dagster_jet.connectors.maps import MapEntriesSource

    return MapEntriesSource(name, schema)


def map_journal(
    name: str, *, schema: str | None = None, start: Literal["earliest", "latest"] = "earliest"
) -> MapJournalSource:
    """Return a source of the changes of a map of the job's own store, read from the map's journal.

    Columns: kind ("put" or "delete"), key (text; keys of other types as JSON), value (null for a
    delete), partition, sequence, timestamp. Rows of one partition, and so of one key, are in order.
    Events that the journal drops before they are read are counted and reported by `ItemsLost`.

    Args:
        name: name of the map, which must exist and have a journal when the job starts.
        schema: DDL of JSON values: an object's fields ("price double, at timestamp"), or a single
            type ("double"). By default `value` is the JSON text, or the bytes of other formats.
        start: start position of a new job: "earliest" is the oldest event still in the journal,
            "latest" reads later events only.

    Example:
        >>> changes = map_journal("prices", schema="price double", start="latest")
    """
    from dagster_jet.connectors.maps import MapJournalSource

    return MapJournalSource(name, schema, start)
