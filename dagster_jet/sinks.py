"""Where streams go to. A connector is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dagster_jet.connectors.files import FilesSink
    from dagster_jet.connectors.maps import MapSink
    from dagster_jet.core.secret import Secret


def files(
    path: str,
    *,
    format: Literal["json", "csv", "parquet"],
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> FilesSink:
    """Return a sink of files in a folder, exactly once: staged, then published.

    `_epochs/<epoch>.json` in the folder lists the files of each committed epoch.

    Readers may move or delete files that are listed, no others.

    Args:
        path: a folder of this sink's own: local (also as `file:///` URL; a relative one is of the
            folder in which the pipeline is built), or in a bucket: `s3://bucket/folder`.
        format: "json" (one object per line), "csv" (with header) or "parquet".
        guarantee: "at-least-once": rows are visible with their epoch, not with the next snapshot,
            and again after a restart; of this sink alone.
        storage_options: of a bucket: `region`, `endpoint_url` of a server that is not AWS's,
            `connect_timeout` and `timeout` in seconds, and as `Secret(env=...)` `access_key_id`,
            `secret_access_key`, `session_token`; without them keys are what boto3 finds.
        shared: says that a local folder is the same one on every machine of a cluster.

    Raises:
        ConfigurationError: there is no such place or option.
    """
    from dagster_jet.connectors.contract import guarantee_named
    from dagster_jet.connectors.files import FilesSink

    storage = tuple((storage_options or {}).items())
    return FilesSink(str(path), format, guarantee_named(guarantee), storage, shared)


def map(
    name: str,
    *,
    key: str | Sequence[str],
    value: str | Sequence[str] | None = None,
    order_by: str | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
) -> MapSink:
    """Return a sink that writes a map of the job's own store (`jet.map(name)`), exactly once.

    Later epochs win per key; a row whose value is null (all of several) deletes its key.

    Args:
        name: the map's; created with JSON values if it does not exist.
        key: column of the key (text, integer, boolean, bytes), or several for a tuple.
        value: column of the value, or several for an object; all columns but the key's by default.
        order_by: of the rows of one epoch with one key, the one with the highest value of this
            column counts; any of them by default.
        guarantee: "at-least-once": rows are visible with their epoch, as for `files`.
    """
    from dagster_jet.connectors.contract import guarantee_named
    from dagster_jet.connectors.maps import MapSink

    keys = (key,) if isinstance(key, str) else tuple(key)
    values = value if value is None or isinstance(value, str) else tuple(value)
    return MapSink(name, keys, values, order_by, guarantee_named(guarantee))
