"""Items that a processor has received and not finished yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class Inbox:
    """Items of one inbound edge, in order. The processor removes an item when it is done with it.

    Item by item: `peek`, offer the results, then `remove`; so a refusal loses nothing. All at
    once: `drain`, for vectorised processors. These must keep the drained items: while output of
    drained items is pending, `process` returns False.
    """

    def __init__(self, items: Iterable[object] = ()) -> None:
        self._items: deque[Any] = deque(items)

    def peek(self) -> Any:
        """Return the first item without removing it; None if there is none (no item is None)."""
        return self._items[0] if self._items else None

    def poll(self) -> Any:
        """Remove and return the first item; None if there is none."""
        return self._items.popleft() if self._items else None

    def remove(self) -> None:
        """Remove the first item.

        Raises:
            IndexError: the inbox is empty.
        """
        self._items.popleft()

    def drain(self) -> list[Any]:
        """Remove and return all items."""
        items = list(self._items)
        self._items.clear()
        return items

    def add(self, item: object) -> None:
        """Append an item; for the runtime."""
        self._items.append(item)

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"Inbox({list(self._items)!r})"
