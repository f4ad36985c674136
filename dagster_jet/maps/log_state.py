"""What a map's register says: the map as a sequence of decided batches. Pure.

The value of the register is small: settings, how many batches there were, where the journal of
each partition ends, who has written what last, and the newest batch (or where it is). It is
replaced with every batch, by compare-and-set: that is the moment a batch counts.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dagster_jet.errors import StoreMismatchError
from dagster_jet.maps.record import Change
from dagster_jet.maps.settings import MapSettings

FORMAT_VERSION = 1
WRITERS_MAX = 64
"""Processes whose last batch is remembered. One that comes back after so many others has written
may not learn any more whether its last batch was decided."""

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Pending:
    """The newest batch: it counts, and may not be on all replicas yet.

    Exactly one of the two is set. A blob that is gone was applied: nobody removes it before.
    """

    inline: bytes | None
    blob: str | None


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
        pending: the newest batch; None before the first.
    """

    settings: MapSettings
    version: int = 0
    timestamp_ms: int = 0
    tails: Mapping[int, int] = field(default_factory=dict)
    writers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sinks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pending: Pending | None = None

    def has(self, producer: Producer) -> bool:
        """Whether the producer's batch was decided. Its batches are numbered upwards."""
        numbers = self.sinks if producer.is_sink else self.writers
        last = numbers.get(producer.name)
        return last is not None and producer.number <= last

    def decided(
        self, changes: Sequence[Change], producer: Producer, pending: Pending, now_ms: int
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
            pending=pending,
        )

    def sequences(self, changes: Sequence[Change]) -> list[int]:
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
        """Return a JSON head, and behind it the batch if it is inline."""
        inline = self.pending.inline if self.pending else None
        head = json.dumps(
            {
                "format": FORMAT_VERSION,
                "settings": asdict(self.settings),
                "version": self.version,
                "timestamp_ms": self.timestamp_ms,
                "tails": list(self.tails.items()),
                "writers": dict(self.writers),
                "sinks": dict(self.sinks),
                "inline": inline is not None,
                "blob": self.pending.blob if self.pending else None,
            },
            separators=(",", ":"),
        ).encode()
        return b"".join((_LENGTH.pack(len(head)), head, inline or b""))

    @staticmethod
    def from_bytes(data: bytes) -> LogState:
        """Read what ``to_bytes`` wrote.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        head: dict[str, Any] = json.loads(data[_LENGTH.size : end])
        if head["format"] > FORMAT_VERSION:
            raise StoreMismatchError(
                f"the map has format {head['format']}, this library reads up to {FORMAT_VERSION}.",
                cure="Upgrade dagster-jet to the version that wrote the map.",
            )
        pending = None
        if head["inline"] or head["blob"] is not None:
            pending = Pending(data[end:] if head["inline"] else None, head["blob"])
        return LogState(
            MapSettings(**head["settings"]),
            head["version"],
            head["timestamp_ms"],
            dict(head["tails"]),
            {name: tuple(number) for name, number in head["writers"].items()},
            {name: tuple(number) for name, number in head["sinks"].items()},
            pending,
        )


@dataclass(frozen=True, slots=True)
class Producer:
    """Who offers a batch, and its number there: what makes offering it twice harmless."""

    name: str
    number: tuple[int, ...]
    is_sink: bool = False
