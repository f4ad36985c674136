"""Reads a map's journal: the latest events of each partition.

Sequence numbers start at 0 and have no gaps. Events before the newest ``capacity`` are overwritten.
Readers skip events older than the time to live.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.maps.changes import Record
from dagster_jet.maps.parts import AnyStore, MapParts

READ_AT_ONCE = 1_000


@dataclass(frozen=True)
class Journal:
    """Reader of one map's journal. Usable in Spark tasks; picklable if its store is.

    Attributes:
        store: an open store or a handle.
        name: name of the map.
        capacity: events per partition.
        time_to_live_ms: age up to which events are read; None: unlimited.
    """

    store: AnyStore
    name: str
    capacity: int
    time_to_live_ms: int | None

    def read(self, partition: int, start: int, stop: int) -> Iterator[Record]:
        """Yield the events from ``start`` up to ``stop``, except those that were overwritten.

        Args:
            partition: the partition.
            start: sequence number of the first event, not below 0.
            stop: one more than the last sequence number; not beyond the partition's tail.

        Raises:
            StoreUnavailableError: no replica answers, or the answering ones lack a decided event,
                which the other replicas have.
        """
        parts = MapParts(self.store, self.name)
        for begin in range(start, stop, READ_AT_ONCE):
            wanted = range(begin, min(begin + READ_AT_ONCE, stop))
            slots = [parts.slot(partition, sequence, self.capacity) for sequence in wanted]
            for sequence, data in zip(wanted, parts.ring().get_all(slots), strict=True):
                record = Record.from_bytes(data) if data is not None else None
                if record is None or record.version < sequence:
                    raise StoreUnavailableError(
                        f"no member that answers has event {sequence} of partition {partition} "
                        f"of the journal of the map {self.name!r}.",
                        cure="Bring all members back, or repair the store.",
                    )
                if record.version == sequence:
                    yield record

    def first_alive(self, ranges: Mapping[int, tuple[int, int]], now_ms: int) -> dict[int, int]:
        """Return, per partition, the first sequence number whose event has not expired.

        Bisects all partitions at once: timestamps within a partition never decrease.

        Args:
            ranges: per partition, the first sequence number and one more than the last.
            now_ms: now, in milliseconds since 1970.
        """
        low = {partition: start for partition, (start, _) in ranges.items()}
        if self.time_to_live_ms is None:
            return low
        high = {partition: stop for partition, (_, stop) in ranges.items()}
        oldest_ms = now_ms - self.time_to_live_ms
        parts = MapParts(self.store, self.name)
        # Start with the first event, which usually has not expired.
        asked = dict(low)
        while asked := {p: s for p, s in asked.items() if low[p] < high[p]}:
            slots = [parts.slot(p, s, self.capacity) for p, s in asked.items()]
            for (partition, sequence), data in zip(
                asked.items(), parts.ring().get_all(slots), strict=True
            ):
                record = Record.from_bytes(data) if data is not None else None
                if record is None or record.version < sequence:
                    high[partition] = low[partition]  # `read` raises the appropriate error
                elif record.version == sequence and record.timestamp_ms >= oldest_ms:
                    high[partition] = sequence
                else:
                    low[partition] = sequence + 1
            asked = {p: (low[p] + high[p]) // 2 for p in asked}
        return low
