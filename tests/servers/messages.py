"""Messages as publishers write them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any


def in_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """With numbers that JSON has no digits for as text, and times as their writers write them."""
    return {name: _in_json(value) for name, value in row.items() if value is not None}


def _in_json(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(value).replace("inf", "Infinity").replace("nan", "NaN")
        case Decimal():
            return str(value)
        case date():  # a datetime is one, too
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
    return value
