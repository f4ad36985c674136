"""Batches of keys whose values fit into memory together, without knowing their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

BATCH_BYTES = 8 * 2**20
_FIRST_KEYS = 16
_KEYS_MAX = 4_096


class Batches:
    """Cuts sequences of keys into batches of about ``BATCH_BYTES``, by the sizes seen so far.

    A batch has at most twice as many keys as the one before, so that a few large values after
    many small ones do not fill the memory.
    """

    def __init__(self) -> None:
        self._count = _FIRST_KEYS

    def of(self, keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Yield the keys in batches; call ``measured`` after each batch."""
        at = 0
        while at < len(keys):
            batch = keys[at : at + self._count]
            at += len(batch)
            yield batch

    def measured(self, keys: int, size: int) -> None:
        """Report that ``keys`` values had ``size`` bytes in total."""
        if keys:
            fitting = BATCH_BYTES * keys // max(size, 1)
            self._count = max(1, min(fitting, 2 * self._count, _KEYS_MAX))
