"""What travels between processors besides the user's items, always in band.

A user's item is anything but None: a row, a tuple, a whole Arrow record batch. This package never
looks into it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Final, NamedTuple


class Signal(str, Enum):
    """Items without content. Compared by identity, so that a user's text "DONE" is only a text."""

    IDLE = "IDLE"
    """The sender has had nothing for a while: leave it out when watermarks are coalesced."""
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
        TypeError: not an integer. NumPy's are taken.
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
    """Everything before it belongs to the snapshot, nothing after it (in exactly-once)."""

    snapshot_id: int
    terminal: bool = False
    """Nothing is processed behind it: the execution ends with this snapshot."""


@dataclass(frozen=True)
class BroadcastKey:
    """Key of a saved entry that every instance gets back, at whatever parallelism."""

    key: Hashable


def broadcast_key(key: Hashable) -> BroadcastKey:
    """Marks a saved key as everybody's: ``outbox.offer_to_snapshot(broadcast_key("wm"), 7)``.

    Every instance may save its own value: each one gets all of them at the restore and merges them,
    for example by taking the minimum.
    """
    return BroadcastKey(key)


@dataclass(frozen=True)
class PartitionKey:
    """Key of an entry that holds many keys of one partition, such as a whole record batch.

    It goes to the instance that owns the partition; the partition is not hashed once more.
    """

    partition: int
    name: Hashable = None


class SnapshotEntry(NamedTuple):
    """One saved entry, as given to `Outbox.offer_to_snapshot` and to `restore_from_snapshot`."""

    key: object
    value: object


InBand = Watermark | Signal | SnapshotBarrier
"""What an inbound stream may carry besides the user's items."""


def is_in_band(item: object) -> bool:
    """Whether an item is the runtime's: broadcast on every edge, never shown in an inbox."""
    return isinstance(item, Watermark | SnapshotBarrier | Signal)
