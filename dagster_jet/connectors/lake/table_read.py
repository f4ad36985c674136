"""The table that a source reads, and how it reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.core.choices import check_known
from dagster_jet.errors import ConfigurationError

STARTS = ("earliest", "latest")
DELETES = ("stop", "skip")


@dataclass(frozen=True)
class TableRead:
    """Facts about the table that a source reads."""

    name: str
    """Name of the table in errors."""
    url: str
    """The table's folder."""
    start: str | int | datetime
    skips_deletes: bool
    storage_options: StorageOptions
    schema: str
    """Columns as DDL."""
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of columns and of the parts of nested ones, by their ids. Files may have older names.
    Empty: the format does not rename columns."""


def check_reading(start: str | int | datetime, deletes: str, version: str) -> None:
    """Checks the options of a source of a lake table.

    Args:
        version: the format's word for a version, with its article.

    Raises:
        ConfigurationError: an option is not valid.
    """
    if isinstance(start, str) and start not in STARTS:
        raise ConfigurationError(
            f"start: {start!r} is unknown.",
            cure=f"Use one of {', '.join(STARTS)}, {version}, or a time.",
        )
    if isinstance(start, datetime) and start.tzinfo is None:
        raise ConfigurationError(f"start: {start} has no time zone.")
    check_known("deletes", deletes, DELETES)
