"""Lists of names in messages, which stay short."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice


def first_of(names: Collection[object], most: int = 20) -> str:
    """Returns the first names, and how many more there are; "none" if there are none.

    Args:
        names: in the order in which they are shown.
        most: number of names to show.

    Example:
        >>> first_of(["a", "b", "c"], 2), first_of(["a", "b"], 2), first_of([])
        ('a, b and 1 more', 'a, b', 'none')
    """
    shown = ", ".join(map(str, islice(names, most)))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{shown}{more}" or "none"
