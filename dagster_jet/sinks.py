"""Where streams go to."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_jet.connectors.files import FilesSink
from dagster_jet.connectors.maps import MapSink


def files(path: str, *, format: str) -> FilesSink:
    """Files in a local folder, exactly once: staged, then renamed; `_epochs/` lists each epoch.

    Readers may move or delete files that are listed, no others.

    Args:
        path: a local folder of this sink's own; also as `file:///` URL. A relative one is of the
            folder in which the pipeline is built.
        format: "json" (one object per line), "csv" (with header) or "parquet".
    """
    return FilesSink(str(path), format)


def map(
    name: str,
    *,
    key: str | Sequence[str],
    value: str | Sequence[str] | None = None,
    order_by: str | None = None,
) -> MapSink:
    """A map of the job's own store (`jet.map(name)`), exactly once: staged, then applied.

    Later epochs win per key; a row whose value is null (all of several) deletes its key.

    Args:
        name: the map's; created with JSON values if it does not exist.
        key: column of the key (text, integer, boolean, bytes), or several for a tuple.
        value: column of the value, or several for an object; all columns but the key's by default.
        order_by: of the rows of one epoch with one key, the one with the highest value of this
            column counts; any of them by default.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    values = value if value is None or isinstance(value, str) else tuple(value)
    return MapSink(name, keys, values, order_by)
