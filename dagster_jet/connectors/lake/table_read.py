"""What a source says of the table that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.errors import ConfigurationError

STARTS = ("earliest", "latest")
DELETES = ("stop", "skip")


@dataclass(frozen=True)
class TableRead:
    """What a source says of the table that it reads."""

    name: str
    """Named in errors."""
    url: str
    """The table's folder."""
    start: str | int | datetime
    skips_deletes: bool
    storage_options: StorageOptions
    schema: str
    """Columns as DDL."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """By column its id in files, which may have an older name of it; empty: names are for ever."""


def check_reading(start: str | int | datetime, deletes: str, version: str) -> None:
    """
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
    if deletes not in DELETES:
        raise ConfigurationError(
            f"deletes: {deletes!r} is unknown.", cure=f"Use one of {', '.join(DELETES)}."
        )
