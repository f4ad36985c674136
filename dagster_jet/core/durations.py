"""Durations in user notation ("2 hours", timedelta) and in ms."""

from __future__ import annotations

import re
from datetime import timedelta

from dagster_jet.errors import ConfigurationError

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "second": 1000,
    "minute": 60_000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)

Duration = str | timedelta


def to_ms(value: Duration, field: str) -> int:
    """Return `value` in ms; raises `ConfigurationError` naming `field`."""
    if isinstance(value, timedelta):
        milliseconds = value.total_seconds() * 1000
    else:
        match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
        unit = match.group(2).lower() if match else ""
        # Unchanged first: "ms" is not the plural of "m".
        factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
        if match is None or factor is None:
            raise ConfigurationError(
                f"{field}: {value!r} is not a duration.",
                cure='Write a timedelta or a text such as "500 ms", "10 seconds", "2 hours".',
            )
        milliseconds = float(match.group(1)) * factor
    if milliseconds < 0:
        raise ConfigurationError(f"{field}: {value!r} is negative.", cure="Use 0 or more.")
    return round(milliseconds)


def signed_ms(value: Duration, field: str) -> int:
    """Return `value` in ms, which may be negative: "-10 minutes"; raises as `to_ms`."""
    if isinstance(value, timedelta):
        return -to_ms(-value, field) if value < timedelta(0) else to_ms(value, field)
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.startswith("-"):
        return -to_ms(text[1:], field)
    return to_ms(text, field)


def in_words(duration_ms: int) -> str:
    """Return a duration in the largest fitting unit, as `to_ms` reads it: "1 hour".

    Example:
        >>> in_words(3_600_000), in_words(90_000), in_words(0)
        ('1 hour', '90 seconds', '0 ms')
    """
    for unit in ("day", "hour", "minute", "second"):
        number, rest = divmod(duration_ms, _UNITS_MS[unit])
        if number and not rest:
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{duration_ms} ms"
