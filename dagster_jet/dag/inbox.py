"""The items a processor has been given and has not finished with."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class Inbox:
    """Items of one inbound edge, in order. An item leaves it when the processor is done with it.

    Item by item: `peek`, offer what follows from it, then `remove`; so a refusal loses nothing.
    As a whole: `drain`, for vectorised processors. They owe what they hold: while output of drained
    items is pending, `process` returns False.
    """

    def __init__(self, items: Iterable[object] = ()) -> None:
        self._items: deque[Any] = deque(items)

    def peek(self) -> Any:
        """The first item, left where it is; None if there is none (no item is None)."""
        return self._items[0] if self._items else None

    def poll(self) -> Any:
        """Removes and returns the first item; None if there is none."""
        return self._items.popleft() if self._items else None

    def remove(self) -> None:
        """Removes the first item.

        Raises:
            IndexError: the inbox is empty.
        """
        self._items.popleft()

    def drain(self) -> list[Any]:
        """Removes and returns everything."""
        items = list(self._items)
        self._items.clear()
        return items

    def add(self, item: object) -> None:
        """For the runtime: appends an item."""
        self._items.append(item)

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __repr__(self) -> str:
        return f"Inbox({list(self._items)!r})"
