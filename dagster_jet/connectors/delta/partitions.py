"""Names of a table's partitions, and values that cannot be one."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import pyarrow as pa

from dagster_jet.connectors.partitioned_rows import FOLDER_BYTES_MAX, NULL_FOLDER, Values


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
        elif text is not None and len(_folder(name, text)) > FOLDER_BYTES_MAX:
            found[number] = f"the partition column {name} is too long for the name of a folder"
    return found


def _folder(name: str, value: str | None) -> str:
    return f"{quote(name, safe='')}={NULL_FOLDER if value is None else quote(value, safe='')}"
