"""Rows that Spark would not take: which dead letters they make, and where they are: it says which,
not where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, BinaryIO

from dagster_jet.connectors.contract import BadRowRule, SourceFrame
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import BadRowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORRUPT_COLUMN = "__corrupt"
FILE_COLUMN = "__file"
FAULT_COLUMN = "__fault"
"""Why a file, or a part of one, could not be read; null in rows that were."""
REASON_COLUMN = "__reason"
_OURS = frozenset({CORRUPT_COLUMN, FILE_COLUMN, FAULT_COLUMN})


def forgiving(schema: str) -> tuple[str, dict[str, str]]:
    """The schema and options with which files are read once more, bad rows in `CORRUPT_COLUMN`."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    return f"{schema}, {CORRUPT_COLUMN} string", options


def divided(frame: DataFrame, rule: BadRowRule | None, stage: str) -> SourceFrame:
    """Good rows and dead letters, if there are to be any. Runs nothing.

    Args:
        frame: with `FILE_COLUMN` and `FAULT_COLUMN` where there is a rule.
    """
    from pyspark.sql import functions as F

    if rule is None:
        return SourceFrame(frame)
    columns = [quoted_name(name) for name in frame.columns if name not in _OURS]
    reason, raw = F.col(FAULT_COLUMN), F.to_json(F.struct(*columns))
    if CORRUPT_COLUMN in frame.columns:
        no_row = F.when(F.col(CORRUPT_COLUMN).isNotNull(), "does not fit the schema")
        reason, raw = F.coalesce(reason, no_row), F.coalesce(CORRUPT_COLUMN, raw)
    for column in rule.required:
        is_null = F.when(F.col(quoted_name(column)).isNull(), f"{column} is null")
        reason = F.coalesce(reason, is_null)
    shared = frame.withColumn(REASON_COLUMN, reason)
    dead_letters = shared.where(F.col(REASON_COLUMN).isNotNull()).select(
        F.lit(stage).alias("source"),
        F.col(FILE_COLUMN).alias("position"),
        F.col(REASON_COLUMN).alias("reason"),
        F.when(F.col(FAULT_COLUMN).isNull(), raw).alias("raw"),
    )
    good = shared.where(F.col(REASON_COLUMN).isNull()).select(*columns)
    return SourceFrame(good, dead_letters, shared)


def first_bad_row(
    frame: DataFrame, open_file: Callable[[str], AbstractContextManager[BinaryIO]]
) -> str | None:
    """``file:line: text`` of the first row with a `CORRUPT_COLUMN`; None if every row fits.

    Args:
        frame: read as `forgiving` says, with the `FILE_COLUMN`.
        open_file: by its name there.
    """
    from pyspark.sql import functions as F

    row = frame.where(F.col(CORRUPT_COLUMN).isNotNull()).first()
    if row is None:
        return None
    path, raw = row[FILE_COLUMN], row[CORRUPT_COLUMN].strip()
    with suppress(OSError, BadRowError), open_file(path) as lines:
        number = _number_of(raw.encode(), lines)
        path = path if number is None else f"{path}:{number}"
    return f"{path}: {raw[:200]}"


def _number_of(wanted: bytes, lines: BinaryIO) -> int | None:
    """Of the line that is `wanted`, or else of the first that has it: it may be one of several
    objects there."""
    having = None
    for number, line in enumerate(lines, start=1):
        if line.strip() == wanted:
            return number
        if having is None and wanted in line:
            having = number
    return having
