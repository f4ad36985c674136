"""Rows that Spark cannot parse: converts them to dead letters and finds their line numbers, which
Spark does not report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, BinaryIO

from dagster_jet.contract import BadRowRule, SourceFrame
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import BadRowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORRUPT_COLUMN = "__corrupt"
FILE_COLUMN = "__file"
FAULT_COLUMN = "__fault"
"""Column with the error of a file, or part of one, that cannot be read; null in other rows."""
REASON_COLUMN = "__reason"
_OURS = frozenset({CORRUPT_COLUMN, FILE_COLUMN, FAULT_COLUMN})


def forgiving(schema: str) -> tuple[str, dict[str, str]]:
    """Returns schema and reader options that put bad rows into `CORRUPT_COLUMN`."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    return f"{schema}, {CORRUPT_COLUMN} string", options


def divided(frame: DataFrame, rule: BadRowRule | None, stage: str) -> SourceFrame:
    """Splits good rows and dead letters, if there is a rule. Runs no Spark job.

    Args:
        frame: has `FILE_COLUMN` and `FAULT_COLUMN` if there is a rule.
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
    """Returns ``file:line: text`` of the first row with a `CORRUPT_COLUMN`; None if all rows fit.

    Args:
        frame: read with the result of `forgiving`, with the `FILE_COLUMN`.
        open_file: opens a file by its name in that column.
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
    """Returns the number of the line equal to `wanted`, or else of the first that contains it: a
    line may have several objects."""
    having = None
    for number, line in enumerate(lines, start=1):
        if line.strip() == wanted:
            return number
        if having is None and wanted in line:
            having = number
    return having
