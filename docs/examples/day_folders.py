"""Folders of Parquet files that another tool writes, one a day, as a source.

A folder is complete when it has a file _SUCCESS, which Spark writes last. Its name is the offset.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from dagster_jet import sources
from dagster_jet.contract import Source


def day_folders(root: str, schema: str) -> Source:
    return sources.from_batches(
        partial(read_days, root, schema),
        schema=schema,
        latest_offset=partial(latest_day, root),
        limit_offset=partial(next_day, root),
    )


def complete_days(root: str) -> list[str]:
    return sorted(done.parent.name for done in Path(root).glob("day=*/_SUCCESS"))


def latest_day(root: str) -> str | None:
    if not Path(root).is_dir():
        raise ConnectionError(f"{root} is not mounted")  # it may pass: called again
    return max(complete_days(root), default=None)


def next_day(root: str, start: str | None, latest: str, max_rows: int) -> str:
    """One day per epoch, however many rows it has."""
    return min(day for day in complete_days(root) if start is None or day > start)


def read_days(root: str, schema: str, spark: Any, start: str | None, end: str) -> Any:
    days = [day for day in complete_days(root) if (start is None or day > start) and day <= end]
    return spark.read.schema(schema).parquet(*(f"{root}/{day}" for day in days))
