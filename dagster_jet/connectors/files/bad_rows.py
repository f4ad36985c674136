"""Where a row is that Spark would not take: it says which, not where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, BinaryIO

from dagster_jet.errors import BadRowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORRUPT_COLUMN = "__corrupt"
FILE_COLUMN = "__file"
FAULT_COLUMN = "__fault"
"""Why a file, or a part of one, could not be read; null in rows that were."""


def forgiving(schema: str) -> tuple[str, dict[str, str]]:
    """The schema and options with which files are read once more, bad rows in `CORRUPT_COLUMN`."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    return f"{schema}, {CORRUPT_COLUMN} string", options


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
