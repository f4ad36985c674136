"""Dead letters: rows that a user's function failed on, for the stage's dead-letter sink."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timezone
from typing import Any

import pyarrow as pa

from dagster_jet.core.ddl import DEAD_LETTER_COLUMNS, split_ddl
from dagster_jet.operators.rows.far_times import python_rows

DEAD_LETTER_SCHEMA = pa.schema([(name, pa.string()) for name, _ in split_ddl(DEAD_LETTER_COLUMNS)])


def dead_letter_table(stage: str, rows: Sequence[tuple[str | None, str, str]]) -> pa.Table:
    """
    Args:
        rows: position, reason and raw text of each.
    """
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(map(_encodable, column), pa.string()) for column in columns]
    source = pa.array([stage] * len(rows), pa.string())
    return pa.Table.from_arrays([source, *arrays], schema=DEAD_LETTER_SCHEMA)


def row_json(row: Mapping[str, Any]) -> str:
    """Returns a row as one line of JSON in the format of the files sink; bytes are base64."""
    return json.dumps(_plain(row), separators=(",", ":"), ensure_ascii=False)


def row_at(rows: pa.RecordBatch | pa.Table, number: int) -> str:
    """Returns the row of this number like `row_json`. Python need not have its dates and times."""
    return row_json(python_rows(rows.slice(number, 1))[0])


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case datetime():
            if value.tzinfo is not None:
                value = value.astimezone(timezone.utc)
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(key): _plain(of_key) for key, of_key in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return str(value)


def _encodable(text: str | None) -> str | None:
    """Replaces invalid Unicode, which exceptions of users may contain and Arrow refuses."""
    return None if text is None else text.encode("utf-8", "replace").decode()
