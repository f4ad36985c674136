"""Statistics of a data file as a table's log keeps them.

Some readers take a missing bound for one that no row meets, and skip the file. So a file has the
bounds of all its columns, or, if one of them cannot be written exactly, its number of rows only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.lake.statistics import Statistics, short_text

_DIGITS_MAX = 15
"""Digits of a number that readers with floating point keep."""
_MS_US = 1000


def as_json(statistics: Statistics) -> str:
    """Returns the text for the log."""
    rows, bounds = str(statistics.rows), {}
    for name, type in statistics.types.items():
        found = statistics.bound(name)
        if name in statistics.endless:
            return _object({"numRecords": rows})
        if found is not None:
            shown = _shown(type, *found)
            if shown is None:
                return _object({"numRecords": rows})
            bounds[name] = shown
    parts = {
        "minValues": {name: texts[0] for name, texts in bounds.items()},
        "maxValues": {name: texts[1] for name, texts in bounds.items()},
        "nullCount": {name: str(count) for name, count in statistics.nulls.items()},
    }
    return _object({"numRecords": rows, **{name: _object(part) for name, part in parts.items()}})


def _object(texts: Mapping[str, str]) -> str:
    """Returns a JSON object of values that are JSON already: decimals are written digit by
    digit."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items()) + "}"


def _shown(type: pa.DataType, least: Any, most: Any) -> tuple[str, str] | None:
    """Returns the bounds as JSON; None if one cannot be written."""
    if isinstance(least, Decimal):
        return None if type.precision > _DIGITS_MAX else (f"{least:f}", f"{most:f}")
    if isinstance(least, str):
        texts = short_text(least, most)
        return None if texts is None else (json.dumps(texts[0]), json.dumps(texts[1]))
    try:
        if pa.types.is_date32(type):
            return _day(least), _day(most)
        if pa.types.is_timestamp(type):
            has_zone = type.tz is not None
            return _time(least // _MS_US, has_zone), _time(-(-most // _MS_US), has_zone)
    except OverflowError:
        return None
    return json.dumps(least), json.dumps(most)


def _day(days: int) -> str:
    return f'"{(date(1970, 1, 1) + timedelta(days=days)).isoformat()}"'


def _time(ms: int, has_zone: bool) -> str:
    at = datetime(1970, 1, 1) + timedelta(milliseconds=ms)
    return f'"{at.isoformat(timespec="milliseconds")}{"Z" if has_zone else ""}"'
