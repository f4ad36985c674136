"""Lists, maps and structs as JSON, in the same form for every database."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from dagster_jet.operators.rows.far_times import python_values

Plain = Callable[[Any], Any]


def json_texts(column: pa.Array) -> pa.Array:
    """JSON per row: a map is an object, a list an array. NaN and infinities become texts, as in the
    values of our other sinks; dates and times before the year 1 or after 9999 are texts with a
    sign, as in JSON files."""
    plain = _plain(column.type)
    texts = (
        None if value is None else json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
        for value in python_values(column)
    )
    return pa.array(texts, pa.string())


def _plain(kind: pa.DataType) -> Plain:
    """Returns a function that converts non-null values of this type for `json`."""
    if pa.types.is_map(kind):
        key, item = _plain(kind.key_type), _or_none(_plain(kind.item_type))
        return lambda pairs: {_name(key(k)): item(v) for k, v in pairs}
    if pa.types.is_struct(kind):
        fields = {one.name: _or_none(_plain(one.type)) for one in kind}
        return lambda value: {name: plain(value[name]) for name, plain in fields.items()}
    if pa.types.is_nested(kind):
        item = _or_none(_plain(kind.value_type))
        return lambda items: [item(one) for one in items]
    return _of_leaf


def _or_none(plain: Plain) -> Plain:
    return lambda value: None if value is None else plain(value)


def _name(key: Any) -> str:
    """Name of an object's member."""
    return key if isinstance(key, str) else json.dumps(key)


def _of_leaf(value: Any) -> Any:
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return value.hex()
    return value
