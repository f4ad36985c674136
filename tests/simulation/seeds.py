"""Order of the histories where one of them has to show something."""

from __future__ import annotations

from collections.abc import Iterator


def beginning_with(first: int, count: int) -> Iterator[int]:
    """The one that has shown it last, wherever it is: most often it does again. Then all others
    below `count`."""
    yield first
    yield from range(first + 1, count)
    yield from range(min(first, count))
