"""Offers the items of an iterator, over as many calls as the outbox needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Emitter(Generic[T]):
    """Offers refused items again, so that a processor need not remember them.

    Use a separate emitter per callback, so that pending items of different callbacks stay apart.
    Source: Hazelcast Jet `AbstractProcessor.emitFromTraverser`, `FlatMapper`.

    Args:
        offer: usually ``self.outbox.offer``.

    Example:
        >>> taken = []
        >>> emitter = Emitter(lambda word: len(taken) < 2 and not taken.append(word))
        >>> emitter.emit(lambda: ["a", "b", "c"])   # "c" is refused
        False
        >>> taken.clear()
        >>> emitter.emit(lambda: ["never made, because c is pending"])
        True
        >>> taken
        ['c']
    """

    def __init__(self, offer: Callable[[T], bool]) -> None:
        self._offer = offer
        self._items: Iterator[T] | None = None
        self._refused: list[T] = []

    @property
    def is_pending(self) -> bool:
        """Whether items of the last iterator are still pending."""
        return self._items is not None

    def emit(self, make: Callable[[], Iterable[T]]) -> bool:
        """Offer the pending items; `make` is called only if there are none.

        Returns:
            True: all were accepted. False: return False from the callback and call this again.
        """
        if self._items is None:
            self._items = iter(make())
        return self.flush()

    def flush(self) -> bool:
        """Offer the pending items; return True if nothing is pending (any more)."""
        if self._items is None:
            return True
        if self._refused:
            if not self._offer(self._refused[0]):
                return False
            self._refused.clear()
        for item in self._items:
            if not self._offer(item):
                self._refused.append(item)
                return False
        self._items = None
        return True


def snapshot_emitter(
    offer_to_snapshot: Callable[[object, object], bool],
) -> Emitter[tuple[object, object]]:
    """Return an emitter of (key, value): ``snapshot_emitter(self.outbox.offer_to_snapshot)``."""
    return Emitter(lambda entry: offer_to_snapshot(entry[0], entry[1]))
