"""Converts pipeline names to names valid in Dagster: ASCII letters, digits and underscores."""

from __future__ import annotations


def dagster_name(name: str) -> str:
    """Returns the name with each character that Dagster refuses replaced by an underscore.

    Example:
        >>> dagster_name("airport-delays.v2")
        'airport_delays_v2'
    """
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
