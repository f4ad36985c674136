"""Messages of one call of the client library, field by field.

Besides librdkafka, a reader's cost is Python's work per message. So fields are extracted by `map`,
in C, and compared as arrays, without a Python loop per message. Garbage collection is paused
meanwhile: it would scan all messages again after every few hundred new ones, which takes as long as
everything else.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from dagster_jet.connectors.kafka.cluster import client_library
from dagster_jet.connectors.kafka.offsets import Partition

NOWHERE = -1


@contextmanager
def without_collections() -> Iterator[None]:
    """Pauses garbage collection in this process. Messages form no cycles, so reference counts free
    them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Places:
    """Numbers partitions from 0, in the given order."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.partitions = tuple(partitions)
        topics = sorted({partition.topic for partition in partitions})
        self._topics = {topic: row for row, topic in enumerate(topics)}
        width = max((partition.number for partition in partitions), default=-1) + 1
        # One extra row and column for unknown topics and partitions.
        self._table = np.full((len(topics) + 1, width + 1), NOWHERE, np.int32)
        for place, partition in enumerate(partitions):
            self._table[self._topics[partition.topic], partition.number] = place

    def of(self, messages: Sequence[Any]) -> npt.NDArray[np.int32]:
        """Number of each message's partition, or `NOWHERE`."""
        kind, count = client_library().Message, len(messages)
        topics = map(self._topics.get, map(kind.topic, messages), repeat(NOWHERE))
        rows = np.fromiter(topics, np.int32, count)
        numbers = np.fromiter(map(kind.partition, messages), np.int32, count)
        beyond = self._table.shape[1] - 1
        found: npt.NDArray[np.int32] = self._table[rows, np.minimum(numbers, beyond)]
        return found

    def table(self, offsets: Mapping[Partition, int]) -> npt.NDArray[np.int64]:
        """Offset by place, or -1 if there is none; the last entry is for `NOWHERE`."""
        wanted = [offsets.get(partition, -1) for partition in self.partitions]
        return np.array([*wanted, -1], np.int64)


@dataclass(frozen=True)
class Polled:
    """Messages in order of arrival, without the client's events (errors, ends of partitions)."""

    messages: Sequence[Any]
    places: npt.NDArray[np.int32]
    """Number of each message's partition in `numbered`."""
    offsets: npt.NDArray[np.int64]
    numbered: Places

    @classmethod
    def of(cls, messages: Sequence[Any], places: Places) -> tuple[Polled, list[Any]]:
        """Splits a poll's result into messages and events."""
        kind = client_library().Message
        events = [m for m in messages if m.error() is not None] if _has_events(messages) else []
        if events:
            messages = [message for message in messages if message.error() is None]
        offsets = np.fromiter(map(kind.offset, messages), np.int64, len(messages))
        return cls(messages, places.of(messages), offsets, places), events

    def __len__(self) -> int:
        return len(self.messages)

    def before(self, stops: npt.NDArray[np.int64]) -> tuple[Polled, set[Partition]]:
        """Messages before the stop of their partition, and the partitions that have reached it.

        Args:
            stops: `Places.table` of exclusive end offsets; a partition without one yields no
                message.
        """
        until = stops[self.places]
        is_last = (self.offsets >= until - 1) & (until >= 0)
        ended = {self.numbered.partitions[place] for place in set(self.places[is_last].tolist())}
        return self._only(self.offsets < until), ended

    def with_values(self) -> Polled:
        """Removes tombstones."""
        values = self.each(client_library().Message.value)
        if None not in values:
            return self
        return self._only(np.array([value is not None for value in values], np.bool_))

    def _only(self, chosen: npt.NDArray[np.bool_]) -> Polled:
        if chosen.all():
            return self
        messages = list(compress(self.messages, chosen.tolist()))
        return Polled(messages, self.places[chosen], self.offsets[chosen], self.numbered)

    def each(self, field: Callable[[Any], Any]) -> list[Any]:
        """Calls a method of each message.

        Args:
            field: unbound, such as `Message.value`.
        """
        return list(map(field, self.messages))


def _has_events(messages: Sequence[Any]) -> bool:
    return any(map(client_library().Message.error, messages))  # an error is true
