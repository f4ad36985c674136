"""Messages received and not deleted yet: their handles, and until when they are hidden.

SQS hides a received message from all consumers for its visibility time-out, counted from the
receive or the last renewal. Meanwhile nobody else can receive it, so the newest handle is ours, and
a deletion by it is final. Later, SQS answers a deletion by an old handle with success, but deletes
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass
class _Receipt:
    message_id: str
    hidden_until: float


class HeldMessages:
    """Handles of held messages, by message id. No I/O and no clock; thread-safe.

    Args:
        visibility_s: seconds for which a receive or a renewal hides a message.

    Example:
        >>> held = HeldMessages(30.0)
        >>> held.received({"handle": "a"}, at=0.0)
        >>> held.due(14.0), held.due(15.0)
        ([], ['handle'])
        >>> held.renewed(["handle"], at=15.0)
        >>> held.is_ours("a", 44.0), held.is_ours("a", 46.0)
        (True, False)
    """

    def __init__(self, visibility_s: float) -> None:
        self._visibility_s = visibility_s
        self._lock = threading.Lock()
        self._receipts: dict[str, _Receipt] = {}
        """By handle, in order of `hidden_until`."""
        self._handles: dict[str, dict[str, None]] = {}
        """By message id. A redelivered message has several handles, as do messages with the same
        publisher id."""

    def __len__(self) -> int:
        with self._lock:
            return len(self._receipts)

    def received(self, messages: Mapping[str, str], at: float) -> None:
        """Adds message ids by handle.

        Args:
            at: when the receive call began. Messages may become visible later than computed from
                it, never earlier.
        """
        with self._lock:
            for handle, message_id in messages.items():
                self._receipts[handle] = _Receipt(message_id, at + self._visibility_s)
                self._handles.setdefault(message_id, {})[handle] = None

    def due(self, now: float) -> list[str]:
        """Handles past half of their visibility time-out, but not past all of it."""
        with self._lock:
            due = []
            for handle, receipt in self._receipts.items():
                if receipt.hidden_until - self._visibility_s / 2 > now:
                    break
                if receipt.hidden_until > now:
                    due.append(handle)
            return due

    def renewed(self, handles: Iterable[str], at: float) -> None:
        """Notes a renewal; ignores handles that were deleted meanwhile."""
        with self._lock:
            for handle in handles:
                receipt = self._receipts.pop(handle, None)
                if receipt is not None:
                    receipt.hidden_until = at + self._visibility_s
                    self._receipts[handle] = receipt

    def forget(self, handles: Iterable[str]) -> None:
        """Removes handles of messages that are deleted, or whose handle SQS refuses."""
        with self._lock:
            for handle in handles:
                receipt = self._receipts.pop(handle, None)
                if receipt is not None:
                    self._drop(receipt.message_id, handle)

    def handles_of(self, message_id: str) -> list[str]:
        with self._lock:
            return list(self._handles.get(message_id, ()))

    def is_ours(self, message_id: str, now: float) -> bool:
        """True if no other consumer can have received the message since any of its deliveries."""
        with self._lock:
            receipts = [self._receipts[handle] for handle in self._handles.get(message_id, ())]
            return bool(receipts) and all(receipt.hidden_until > now for receipt in receipts)

    def handles(self) -> list[str]:
        with self._lock:
            return list(self._receipts)

    def _drop(self, message_id: str, handle: str) -> None:
        handles = self._handles[message_id]
        del handles[handle]
        if not handles:
            del self._handles[message_id]
