"""A bounded queue between one producer and one consumer."""

from __future__ import annotations

from collections import deque
from typing import Any

QUEUE_SIZE = 1024
"""Number of items; Hazelcast Jet's default."""


class BoundedQueue:
    """First in, first out; an offer to a full queue is refused and never blocks.

    Each producing instance has its own queue to each consuming instance, so one thread appends
    and one removes, for which `deque` needs no lock.
    """

    def __init__(self, capacity: int = QUEUE_SIZE) -> None:
        self._items: deque[Any] = deque()
        self._capacity = capacity

    def offer(self, item: object) -> bool:
        if len(self._items) >= self._capacity:
            return False
        self._items.append(item)
        return True

    def peek(self) -> Any:
        return self._items[0] if self._items else None

    def poll(self) -> Any:
        return self._items.popleft() if self._items else None

    def __len__(self) -> int:
        return len(self._items)
