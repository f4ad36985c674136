"""What a reader of an acknowledging queue has read: each message counts once, however often it is
delivered, and is acknowledged once a snapshot has it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

REMEMBERED_MAX = 10_000


class ReadMessages:
    """The ids of the messages of one reader. Any thread.

    Brokers deliver again what was not acknowledged, and some of them, after a lost connection, what
    was: the newest ids that were acknowledged are remembered, too.

    Args:
        remembered_max: how many of them. They are part of every snapshot.
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._lock = threading.Lock()
        self._remembered_max = remembered_max
        self._waiting: set[str] = set()
        self._open: dict[str, Any] = {}
        self._closed: dict[str, None] = {}
        """Newest last."""

    def deliver(self, message_id: str, handle: Any) -> bool:
        """Whether a message that was delivered is a new one: hand it out then, else drop it.

        Args:
            handle: what acknowledges this delivery, as JSON. That of the newest delivery counts.

        Of what was acknowledged already, the handle is `unacknowledged` again: else the broker
        would go on delivering it.
        """
        with self._lock:
            is_new = message_id not in self._open and message_id not in self._closed
            is_new &= message_id not in self._waiting
            if is_new:
                self._waiting.add(message_id)
            elif message_id not in self._waiting:
                self._open[message_id] = handle
            return is_new

    def handed_out(self, messages: Mapping[str, Any]) -> None:
        """`plan` has put these into a split; by id, the handle."""
        with self._lock:
            self._waiting.difference_update(messages)
            self._open.update(messages)

    def unacknowledged(self) -> dict[str, Any]:
        """For `Acknowledging.unacknowledged`."""
        with self._lock:
            return dict(self._open)

    def acknowledged(self, messages: Mapping[str, Any]) -> None:
        """The broker has been told, and has them no longer. By id, the handle that was used."""
        with self._lock:
            for message_id, handle in messages.items():
                if self._open.get(message_id) == handle:
                    del self._open[message_id]
                self._closed.pop(message_id, None)
                self._closed[message_id] = None
            while len(self._closed) > self._remembered_max:
                del self._closed[next(iter(self._closed))]

    def remembered(self) -> list[str]:
        """For `position`: what `restore` takes."""
        with self._lock:
            return list(self._closed)

    def restore(self, remembered: Iterable[str]) -> None:
        with self._lock:
            self._closed = dict.fromkeys(remembered)

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """For `Acknowledging.restore_unacknowledged`."""
        with self._lock:
            self._open = dict(messages)
