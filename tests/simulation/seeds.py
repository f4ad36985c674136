"""In which order histories are played where one of them has to show something."""

from __future__ import annotations

from collections.abc import Iterator


def beginning_with(first: int, count: int) -> Iterator[int]:
    """All seeds below `count`, from the one that has shown it last: most often it does again."""
    yield from range(first, count)
    yield from range(first)
