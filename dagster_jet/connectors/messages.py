"""Deduplication of a queue's messages: each counts once, however often it is delivered, and is
acknowledged once a snapshot has it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

REMEMBERED_MAX = 10_000


class ReadMessages:
    """Tracks the message ids of one reader. Thread-safe.

    A message *waits* until it is in a split, is then *unacknowledged*, and finally *acknowledged*.
    Brokers redeliver unacknowledged messages, and some of them, after a lost connection, also
    acknowledged ones. So the newest acknowledged ids are remembered, too.

    An acknowledgement that the broker does not confirm may be lost. Its id is *unproven*: only
    `forget_unproven` removes it, newer ids do not.

    Args:
        remembered_max: number of acknowledged ids to remember. They are part of every snapshot.
            A message that is redelivered after more others than that counts twice.

    Example:
        >>> read = ReadMessages()
        >>> read.deliver("a", "handle 1")       # new
        True
        >>> read.handed_out({"a": "handle 1"})
        >>> read.deliver("a", "handle 2")       # redelivered
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
        """Start times by id, by the reader's clock; oldest first."""

    def deliver(self, message_id: str, handle: Any) -> bool:
        """Records a delivery, and returns whether the message is new; if not, drop it.

        A message that was already acknowledged is `unacknowledged` again: otherwise the broker
        would keep delivering it.

        Args:
            message_id: identifies the message in all its deliveries.
            handle: acknowledges this delivery, as JSON. Once the message is in a split, the
                handle of the newest delivery replaces earlier ones.
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
        """Records that `plan` has put these messages into a split.

        Args:
            messages: handles by id.
        """
        with self._lock:
            self._waiting.difference_update(messages)
            self._open.update(messages)

    def unacknowledged(self) -> dict[str, Any]:
        """Returns handles by id, for `SourceReader.unacknowledged`."""
        with self._lock:
            return dict(self._open)

    def is_acknowledged(self, message_id: str) -> bool:
        """Whether a snapshot has the message: the delivery can be acknowledged at once."""
        with self._lock:
            return message_id in self._closed or message_id in self._unproven

    def acknowledged(
        self, messages: Mapping[str, Any], *, unproven_since: float | None = None
    ) -> None:
        """Records that these messages were acknowledged; call it in `acknowledge`.

        A message that was redelivered meanwhile stays unacknowledged, under its new handle.

        Args:
            messages: the used handles, by id.
            unproven_since: the current time by the reader's clock if the broker has not confirmed.
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
            # Not one at a time: each look for the first one would pass over those deleted before.
            for one in list(islice(self._closed, max(0, len(self._closed) - self._remembered_max))):
                del self._closed[one]

    def remembered(self) -> list[str]:
        """Returns the newest ids that a snapshot has, oldest first: part of
        `SourceReader.position`. Unacknowledged ones are the newest, because this snapshot is the
        only one that names them once it has acknowledged them."""
        with self._lock:
            ids = [*self._closed, *(one for one in self._open if one not in self._closed)]
            return ids[max(0, len(ids) - self._remembered_max) :]

    def unproven(self) -> dict[str, float]:
        """Returns the unproven ids and their start times: also part of the position."""
        with self._lock:
            return dict(self._unproven)

    def forget_unproven(self, before: float) -> None:
        """Forgets ids that became unproven before this time of the reader's clock."""
        with self._lock:
            self._unproven = {one: at for one, at in self._unproven.items() if at >= before}

    def restore(
        self, remembered: Iterable[str], unproven: Mapping[str, float] | None = None
    ) -> None:
        """Restores the results of `remembered` and `unproven`."""
        with self._lock:
            self._closed = dict.fromkeys(remembered)
            self._unproven = dict(unproven or {})

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Restores the result of `unacknowledged`, for `SourceReader.restore_unacknowledged`."""
        with self._lock:
            self._open = dict(messages)
