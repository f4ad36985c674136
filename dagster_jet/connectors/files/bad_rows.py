"""Where a row is that Spark would not take: it says which, not where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CORRUPT_COLUMN = "__corrupt"
FILE_COLUMN = "__file"


def forgiving(schema: str) -> tuple[str, dict[str, str]]:
    """The schema and options with which files are read once more, bad rows in `CORRUPT_COLUMN`."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT_COLUMN}
    return f"{schema}, {CORRUPT_COLUMN} string", options


def first_bad_row(frame: DataFrame, open_file: Callable[[str], BinaryIO]) -> str | None:
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
    number, wanted = None, raw.encode()
    with suppress(OSError), open_file(path) as lines:
        number = next((n for n, line in enumerate(lines, start=1) if line.strip() == wanted), None)
    where = path if number is None else f"{path}:{number}"
    return f"{where}: {raw[:200]}"
