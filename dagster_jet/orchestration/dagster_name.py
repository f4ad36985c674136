"""The name of a pipeline as Dagster takes names: ASCII letters, digits and underscores."""

from __future__ import annotations


def dagster_name(name: str) -> str:
    """Returns the name with an underscore for each character that Dagster refuses.

    Example:
        >>> dagster_name("airport-delays.v2")
        'airport_delays_v2'
    """
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
