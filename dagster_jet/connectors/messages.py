"""What a reader of an acknowledging queue has read: each message counts once, however often it is
delivered, and is acknowledged once a snapshot has it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

REMEMBERED_MAX = 10_000


class ReadMessages:
    """The ids of the messages of one reader. Any thread may call it.

    A message first *waits*, then it is *unacknowledged* once it is in a split, then
    *acknowledged*. Brokers deliver again what was not acknowledged, and some of them, after a lost
    connection, what was: so the newest acknowledged ids are remembered, too.

    A broker that answers no acknowledgement may not have had it: an id of which that is so is
    *unproven*, and is not forgotten for newer ones, but by `forget_unproven`.

    Args:
        remembered_max: how many acknowledged ids are remembered. They are part of every snapshot.
            A message that is delivered again after more others than that counts twice.

    Example:
        >>> read = ReadMessages()
        >>> read.deliver("a", "handle 1")       # new
        True
        >>> read.handed_out({"a": "handle 1"})
        >>> read.deliver("a", "handle 2")       # the broker has lost patience
        False
        >>> read.unacknowledged()
        {'a': 'handle 2'}
        >>> read.acknowledged({"a": "handle 2"})
        >>> read.unacknowledged(), read.remembered()
        ({}, ['a'])
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._lock = threading.Lock()
        self._remembered_max = remembered_max
        self._waiting: set[str] = set()
        self._open: dict[str, Any] = {}
        self._closed: dict[str, None] = {}
        """Newest last."""
        self._unproven: dict[str, float] = {}
        """Since when, by the reader's clock; oldest first."""

    def deliver(self, message_id: str, handle: Any) -> bool:
        """Notes a delivery, and returns whether the message is new: else drop it.

        A message that was acknowledged already is `unacknowledged` again: else the broker would go
        on delivering it.

        Args:
            message_id: the same at every delivery of a message, and of no other message.
            handle: what acknowledges this delivery, as JSON. Once the message is in a split, the
                handle of the newest delivery replaces the earlier ones.
        """
        with self._lock:
            known = (self._open, self._closed, self._unproven, self._waiting)
            is_new = not any(message_id in ids for ids in known)
            if is_new:
                self._waiting.add(message_id)
            elif message_id not in self._waiting:
                self._open[message_id] = handle
            return is_new

    def handed_out(self, messages: Mapping[str, Any]) -> None:
        """Notes that `plan` has put these messages into a split.

        Args:
            messages: handles by id.
        """
        with self._lock:
            self._waiting.difference_update(messages)
            self._open.update(messages)

    def unacknowledged(self) -> dict[str, Any]:
        """Returns handles by id, for `Acknowledging.unacknowledged`."""
        with self._lock:
            return dict(self._open)

    def is_acknowledged(self, message_id: str) -> bool:
        """Whether a snapshot has it: the delivery can be acknowledged at once."""
        with self._lock:
            return message_id in self._closed or message_id in self._unproven

    def acknowledged(
        self, messages: Mapping[str, Any], *, unproven_since: float | None = None
    ) -> None:
        """Notes that the broker has forgotten these messages; call it in `acknowledge`.

        A message that was delivered once more meanwhile stays unacknowledged, under its new handle.

        Args:
            messages: the handles that were used, by id.
            unproven_since: if it is not known whether the broker has: now, by the reader's clock.
        """
        with self._lock:
            for message_id, handle in messages.items():
                if self._open.get(message_id, handle) == handle:
                    self._open.pop(message_id, None)
                if unproven_since is not None:
                    self._unproven.setdefault(message_id, unproven_since)
                    continue
                self._unproven.pop(message_id, None)
                self._closed.pop(message_id, None)
                self._closed[message_id] = None
            while len(self._closed) > self._remembered_max:
                del self._closed[next(iter(self._closed))]

    def remembered(self) -> list[str]:
        """Returns the newest acknowledged ids, oldest first: a part of `SourceReader.position`."""
        with self._lock:
            return list(self._closed)

    def unproven(self) -> dict[str, float]:
        """Returns the unproven ids and since when they are: a part of the position, too."""
        with self._lock:
            return dict(self._unproven)

    def forget_unproven(self, before: float) -> None:
        """Forgets the ids that have been unproven since before then, by the reader's clock."""
        with self._lock:
            self._unproven = {one: at for one, at in self._unproven.items() if at >= before}

    def restore(
        self, remembered: Iterable[str], unproven: Mapping[str, float] | None = None
    ) -> None:
        """Takes back what `remembered` and `unproven` returned."""
        with self._lock:
            self._closed = dict.fromkeys(remembered)
            self._unproven = dict(unproven or {})

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Takes back what `unacknowledged` returned, for `Acknowledging.restore_unacknowledged`."""
        with self._lock:
            self._open = dict(messages)
