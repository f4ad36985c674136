"""Where streams come from."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_jet.connectors.files import FilesSource, FilesTable


def files(
    path: str,
    *,
    format: str,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
) -> FilesSource:
    """Finished files in a folder, in order of (modification time, name).

    Args:
        path: a local folder, or a glob pattern.
        format: "json" (one object per line), "csv" or "parquet".
        schema: column names and types as DDL: "id long, at timestamp".
        options: for Spark's reader, for example ``{"header": "true"}``.
    """
    return FilesSource(str(path), format, schema, tuple(sorted((options or {}).items())))


def table(
    path: str,
    *,
    format: str = "parquet",
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
) -> FilesTable:
    """A batch table to enrich a stream with; read whole when an execution starts."""
    return FilesTable(str(path), format, schema, tuple(sorted((options or {}).items())))
