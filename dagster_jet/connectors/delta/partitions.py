"""Divides rows by the values of a table's partition columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

Values = tuple[str | None, ...]
"""Texts of the partition columns' values, as the log keeps them; None: null."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_FOLDER_MAX = 255
"""Longest name of a folder in most file systems."""


def divided(batch: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yields the rows of each partition, in their order and without its columns."""
    if not by:
        yield (), batch
        return
    rows = batch.drop_columns(list(by))
    texts = [_texts(batch.column(name)) for name in by]
    numbers: dict[Values, list[int]] = {}
    for number, values in enumerate(zip(*texts, strict=True)):
        numbers.setdefault(values, []).append(number)
    for values, mine in numbers.items():
        yield values, rows if len(numbers) == 1 else rows.take(pa.array(mine, pa.int64()))


def folder_of(by: Sequence[str], values: Values) -> str:
    """Returns the folder of a partition in Hive's form, with a slash at its end; "" without
    partitions. Readers take the values from the log, not from here."""
    return "".join(f"{_folder(n, v)}/" for n, v in zip(by, values, strict=True))


def refused_texts(name: str, values: pa.Array) -> dict[int, str]:
    """Returns, by row number, why a text cannot be the value of a partition column."""
    found: dict[int, str] = {}
    for number, text in enumerate(values.to_pylist()):
        if text == "":  # Delta Lake takes it for null
            found[number] = f"the partition column {name} is an empty text"
        elif text is not None and len(_folder(name, text)) > _FOLDER_MAX:
            found[number] = f"the partition column {name} is too long for the name of a folder"
    return found


def _texts(values: pa.Array) -> list[str | None]:
    if pa.types.is_boolean(values.type):
        values = pc.if_else(values, "true", "false")
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts


def _folder(name: str, value: str | None) -> str:
    return f"{quote(name, safe='')}={_NULL if value is None else quote(value, safe='')}"
