"""Reads a source of a table by its reader, as a driver does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def planned(reader: Any, max_rows: int = 1_000) -> list[tuple[int, int, int | None]]:
    """Version (Iceberg: sequence number), first row and end of the pieces that wait."""
    reader.accept(reader.poll())
    found = []
    while split := reader.plan(max_rows):
        found += [(one.file.version, one.first, one.end) for one in split]
    return found


def read(spark: SparkSession, reader: Any) -> list[Any]:
    reader.accept(reader.poll())
    rows: list[Any] = []
    while split := reader.plan(1_000_000):
        part = reader.frame(spark, split).rows.collect()
        reader.verify(split, len(part))
        rows += part
    return rows
