"""Items that processors exchange besides the user's items, always in band.

A user's item is anything but None: a row, a tuple, a whole Arrow record batch. This package does
not interpret it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Final, NamedTuple


class Signal(str, Enum):
    """Items without content. Compared by identity, so that a user's text "DONE" stays a text."""

    IDLE = "IDLE"
    """The sender has been idle for a while: ignore it when watermarks are coalesced."""
    DONE = "DONE"
    """The sender has ended; nothing follows."""

    def __str__(self) -> str:
        return self.value


IDLE: Final = Signal.IDLE
"""`Signal.IDLE`."""
DONE: Final = Signal.DONE
"""`Signal.DONE`."""


@dataclass(frozen=True, order=True)
class Watermark:
    """No event older than this follows, except late ones.

    Raises:
        TypeError: the timestamp is not an integer. NumPy integers are accepted.
    """

    timestamp_ms: int

    def __post_init__(self) -> None:
        if type(self.timestamp_ms) is not int:
            try:
                object.__setattr__(self, "timestamp_ms", index(self.timestamp_ms))
            except TypeError:
                raise TypeError(
                    f"a watermark is an integer of milliseconds, not {self.timestamp_ms!r}"
                ) from None


@dataclass(frozen=True)
class SnapshotBarrier:
    """Items before it belong to the snapshot, items after it do not (in exactly-once)."""

    snapshot_id: int
    terminal: bool = False
    """No item behind it is processed: the execution ends with this snapshot."""


@dataclass(frozen=True)
class BroadcastKey:
    """Key of a saved entry that is restored to every instance, at any parallelism."""

    key: Hashable


def broadcast_key(key: Hashable) -> BroadcastKey:
    """Mark a saved key for all instances: ``outbox.offer_to_snapshot(broadcast_key("wm"), 7)``.

    Every instance may save its own value: at the restore each one receives all of them and merges
    them, for example by taking the minimum.
    """
    return BroadcastKey(key)


@dataclass(frozen=True)
class PartitionKey:
    """Key of an entry with many keys of one partition, such as a whole record batch.

    It goes to the instance that owns the partition; the key itself is not hashed.
    """

    partition: int
    name: Hashable = None


class SnapshotEntry(NamedTuple):
    """One saved entry, as in `Outbox.offer_to_snapshot` and `restore_from_snapshot`."""

    key: object
    value: object


def is_in_band(item: object) -> bool:
    """Whether an item belongs to the runtime: sent on every edge, never in an inbox."""
    return isinstance(item, Watermark | SnapshotBarrier | Signal)
