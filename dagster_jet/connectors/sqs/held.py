"""What was received and is not deleted yet: by which handles, and until when it is hidden.

SQS hides a received message from everybody for its visibility time-out, counted from the receipt or
the last renewal. As long as that lasts nobody else can have received it, so that its newest handle
is ours, and a deletion by it is final. After that SQS answers a deletion by an old handle with
success, and deletes nothing.
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
    """By id, the handles of what is held. No I/O and no clock of its own; any thread may call it.

    Args:
        visibility_s: for how long a receipt or a renewal hides a message.

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
        """By handle; who is hidden for the longest is last."""
        self._handles: dict[str, dict[str, None]] = {}
        """By message id: a message that came again has several, and so have two messages that
        their publisher has given one id."""

    def __len__(self) -> int:
        with self._lock:
            return len(self._receipts)

    def received(self, messages: Mapping[str, str], at: float) -> None:
        """Notes message ids by handle.

        Args:
            at: when they were asked for: they may be visible again earlier than we think, not
                later.
        """
        with self._lock:
            for handle, message_id in messages.items():
                self._receipts[handle] = _Receipt(message_id, at + self._visibility_s)
                self._handles.setdefault(message_id, {})[handle] = None

    def due(self, now: float) -> list[str]:
        """The handles of which half the time has passed, and not all of it."""
        with self._lock:
            due = []
            for handle, receipt in self._receipts.items():
                if receipt.hidden_until - self._visibility_s / 2 > now:
                    break
                if receipt.hidden_until > now:
                    due.append(handle)
            return due

    def renewed(self, handles: Iterable[str], at: float) -> None:
        """Notes that these are hidden anew. What was deleted meanwhile is passed over."""
        with self._lock:
            for handle in handles:
                receipt = self._receipts.pop(handle, None)
                if receipt is not None:
                    receipt.hidden_until = at + self._visibility_s
                    self._receipts[handle] = receipt

    def forget(self, handles: Iterable[str]) -> None:
        """Of messages that are deleted, or that SQS does not take for ours any more."""
        with self._lock:
            for handle in handles:
                receipt = self._receipts.pop(handle, None)
                if receipt is not None:
                    self._drop(receipt.message_id, handle)

    def handles_of(self, message_id: str) -> list[str]:
        with self._lock:
            return list(self._handles.get(message_id, ()))

    def is_ours(self, message_id: str, now: float) -> bool:
        """Whether nobody else can have received it since, in any of its deliveries."""
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
