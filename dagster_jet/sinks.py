"""Where streams go to."""

from __future__ import annotations

from dagster_jet.connectors.files import FilesSink


def files(path: str, *, format: str) -> FilesSink:
    """Files in a local folder, exactly once: staged, then renamed; `_epochs/` lists each epoch.

    Args:
        path: a folder of this sink's own.
        format: "json" (one object per line), "csv" (with header) or "parquet".
    """
    return FilesSink(str(path), format)
