"""Where a row is that Spark would not take: it says which, not where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dagster_jet.connectors.files.places import literally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORRUPT_COLUMN = "__corrupt"
FILE_COLUMN = "__file"


def first_bad_row(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    format: str,
    schema: str,
    options: Mapping[str, str],
) -> str | None:
    """Reads the files once more, forgiving. ``file:line: text``; None if every row fits."""
    from pyspark.sql import functions as F

    reader = spark.read.options(**options).option("mode", "PERMISSIVE").format(format)
    reader = reader.schema(f"{schema}, {CORRUPT_COLUMN} string")
    frame = reader.option("columnNameOfCorruptRecord", CORRUPT_COLUMN).load(
        [literally(path) for path in paths]
    )
    bad = frame.where(F.col(CORRUPT_COLUMN).isNotNull())
    row = bad.select("*", F.col("_metadata.file_path").alias(FILE_COLUMN)).first()
    if row is None:
        return None
    path, raw = unquote(urlsplit(row[FILE_COLUMN]).path), row[CORRUPT_COLUMN].strip()
    number = None
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as lines:
        number = next((n for n, line in enumerate(lines, start=1) if line.strip() == raw), None)
    where = path if number is None else f"{path}:{number}"
    return f"{where}: {raw[:200]}"
