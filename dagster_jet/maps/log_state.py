"""Value of a map's register: the state after a sequence of decided batches. Pure.

The value is small: settings, number of batches, end of each partition's journal, newest batch per
writer, and the location of the newest batch. It holds no keys or values of users, because registers
are not encrypted. Replacing it decides a batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dagster_jet.core.stored_format import check_format
from dagster_jet.maps.changes import MapChange
from dagster_jet.maps.settings import MapSettings

FORMAT_VERSION = 1
WRITERS_MAX = 64
"""Number of processes whose newest batch is remembered. A process that returns after that many
others have written may not learn whether its own last batch was decided."""


@dataclass(frozen=True)
class LogState:
    """State of a map after its newest batch.

    Attributes:
        settings: fixed at creation.
        version: number of decided batches.
        timestamp_ms: time of the newest batch; never decreases.
        tails: sequence number of the next journal event, by partition that has events.
        writers: number of each process's newest batch; only the last ``WRITERS_MAX`` processes.
        sinks: number of each sink's newest batch, kept for ever.
        blob: location of the newest batch; None before the first. The batch is decided, but perhaps
            not applied everywhere. A blob is removed only after its batch was applied.
    """

    settings: MapSettings
    version: int = 0
    timestamp_ms: int = 0
    tails: Mapping[int, int] = field(default_factory=dict)
    writers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sinks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    blob: str | None = None

    def has(self, producer: Producer) -> bool:
        """Whether the producer's batch was decided. Its batches have increasing numbers."""
        numbers = self.sinks if producer.is_sink else self.writers
        last = numbers.get(producer.name)
        return last is not None and producer.number <= last

    def decided(
        self, changes: Sequence[MapChange], producer: Producer, blob: str, now_ms: int
    ) -> LogState:
        """Return the state after one more batch."""
        tails = dict(self.tails)
        if self.settings.journal_capacity is not None:
            for partition, count in Counter(change.partition for change in changes).items():
                tails[partition] = tails.get(partition, 0) + count
        sinks, writers = dict(self.sinks), dict(self.writers)
        if producer.is_sink:
            sinks[producer.name] = producer.number
        else:
            writers.pop(producer.name, None)
            writers[producer.name] = producer.number  # the newest is last
            for oldest in list(writers)[:-WRITERS_MAX]:
                del writers[oldest]
        return replace(
            self,
            version=self.version + 1,
            timestamp_ms=max(self.timestamp_ms, now_ms),
            tails=tails,
            writers=writers,
            sinks=sinks,
            blob=blob,
        )

    def sequences(self, changes: Sequence[MapChange]) -> list[int]:
        """Return the journal sequence number of each change of the newest batch."""
        count = Counter(change.partition for change in changes)
        following = {partition: self.tails[partition] - n for partition, n in count.items()}
        numbers = []
        for change in changes:
            numbers.append(following[change.partition])
            following[change.partition] += 1
        return numbers

    def oldest(self, partition: int) -> int:
        """Return the sequence number of the oldest event that the journal has room for."""
        assert self.settings.journal_capacity is not None
        return max(0, self.tails.get(partition, 0) - self.settings.journal_capacity)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "settings": asdict(self.settings),
                "version": self.version,
                "timestamp_ms": self.timestamp_ms,
                "tails": list(self.tails.items()),
                "writers": dict(self.writers),
                "sinks": dict(self.sinks),
                "blob": self.blob,
            },
            separators=(",", ":"),
        ).encode()

    @staticmethod
    def from_bytes(data: bytes) -> LogState:
        """Parses the output of ``to_bytes``.

        Raises:
            StoreMismatchError: the data was written by a newer version.
        """
        head: dict[str, Any] = json.loads(data)
        check_format("the map", head["format"], FORMAT_VERSION)
        return LogState(
            MapSettings(**head["settings"]),
            head["version"],
            head["timestamp_ms"],
            dict(head["tails"]),
            {name: tuple(number) for name, number in head["writers"].items()},
            {name: tuple(number) for name, number in head["sinks"].items()},
            head["blob"],
        )


@dataclass(frozen=True, slots=True)
class Producer:
    """Identifies a batch by its producer and a number, so that offering it twice is harmless."""

    name: str
    number: tuple[int, ...]
    is_sink: bool = False
