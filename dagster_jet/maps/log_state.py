"""The value of a map's register: the map as a sequence of decided batches. Pure.

The value of the register is small: settings, how many batches there were, where the journal of
each partition ends, who has written what last, and where the newest batch is. It holds no keys and
no values of users: registers are not encrypted. It is replaced with every batch: that is the
moment a batch counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dagster_jet.errors import StoreMismatchError
from dagster_jet.maps.changes import MapChange
from dagster_jet.maps.settings import MapSettings

FORMAT_VERSION = 1
WRITERS_MAX = 64
"""Processes whose last batch is remembered. One that comes back after so many others has written
may not learn any more whether its last batch was decided."""


@dataclass(frozen=True)
class LogState:
    """A map as of its newest batch.

    Attributes:
        settings: fixed at creation.
        version: how many batches were decided.
        timestamp_ms: of the newest batch; never goes back.
        tails: per partition that has one, the sequence number of the journal's next event.
        writers: per process, the number of its newest batch here; the last ``WRITERS_MAX``.
        sinks: per sink, the same, for ever.
        blob: where the newest batch is; None before the first. It counts, and may not be applied on
            all replicas yet. One that is gone from there was applied: nobody removes it before.
    """

    settings: MapSettings
    version: int = 0
    timestamp_ms: int = 0
    tails: Mapping[int, int] = field(default_factory=dict)
    writers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sinks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    blob: str | None = None

    def has(self, producer: Producer) -> bool:
        """Whether the producer's batch was decided. Its batches are numbered upwards."""
        numbers = self.sinks if producer.is_sink else self.writers
        last = numbers.get(producer.name)
        return last is not None and producer.number <= last

    def decided(
        self, changes: Sequence[MapChange], producer: Producer, blob: str, now_ms: int
    ) -> LogState:
        """Return the state with one more batch."""
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
        """Return the journal's sequence number of each change of the newest batch."""
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
        """Return the state as JSON."""
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
        """Read what ``to_bytes`` wrote.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        head: dict[str, Any] = json.loads(data)
        if head["format"] > FORMAT_VERSION:
            raise StoreMismatchError(
                f"the map has format {head['format']}, this library reads up to {FORMAT_VERSION}.",
                cure="Upgrade dagster-jet to the version that wrote the map.",
            )
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
    """Who offers a batch, and its number there: what makes offering it twice harmless."""

    name: str
    number: tuple[int, ...]
    is_sink: bool = False
