"""Reading a map's journal: per partition a sequence of events, of which the last ones are kept.

Sequence numbers begin with 0 and have no gaps. Events before the newest ``capacity`` are gone, and
so are, for readers, those older than the time to live.
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
    """The journal of one map. Works in Spark tasks too; picklable where its store is.

    Attributes:
        store: an open store or a handle.
        name: the map's.
        capacity: events per partition.
        time_to_live_ms: None: as long as there is room.
    """

    store: AnyStore
    name: str
    capacity: int
    time_to_live_ms: int | None

    def read(self, partition: int, start: int, stop: int) -> Iterator[Record]:
        """Yield the events from ``start`` up to ``stop``, without those that are gone by now.

        Args:
            partition: the partition.
            start: sequence number of the first event, not below 0.
            stop: one more than that of the last; not beyond the partition's tail.

        Raises:
            StoreUnavailableError: no replica answers, or those that do lack an event that was
                decided; it comes back with the others.
        """
        parts = MapParts(self.store, self.name)
        for begin in range(start, stop, READ_AT_ONCE):
            wanted = range(begin, min(begin + READ_AT_ONCE, stop))
            slots = [parts.slot(partition, sequence, self.capacity) for sequence in wanted]
            for sequence, data in zip(wanted, parts.ring().get_all(slots), strict=True):
                record = Record.from_bytes(data) if data is not None else None
                if record is None or record.version < sequence:
                    raise StoreUnavailableError(
                        f"event {sequence} of partition {partition} of the journal of the map "
                        f"{self.name!r} is not on the members that answer.",
                        cure="Bring all members back, or repair the store.",
                    )
                if record.version == sequence:
                    yield record

    def first_alive(self, ranges: Mapping[int, tuple[int, int]], now_ms: int) -> dict[int, int]:
        """Return, per partition, the first sequence number whose event has not outlived its time.

        A bisection over all partitions at once: timestamps of a partition never go back.

        Args:
            ranges: per partition, where to look: first number, and one more than the last.
            now_ms: now, in milliseconds since 1970.
        """
        low = {partition: start for partition, (start, _) in ranges.items()}
        if self.time_to_live_ms is None:
            return low
        high = {partition: stop for partition, (_, stop) in ranges.items()}
        oldest_ms = now_ms - self.time_to_live_ms
        parts = MapParts(self.store, self.name)
        # The first question is the usual answer: what comes next is still alive.
        asked = dict(low)
        while asked := {p: s for p, s in asked.items() if low[p] < high[p]}:
            slots = [parts.slot(p, s, self.capacity) for p, s in asked.items()]
            for (partition, sequence), data in zip(
                asked.items(), parts.ring().get_all(slots), strict=True
            ):
                record = Record.from_bytes(data) if data is not None else None
                if record is None or record.version < sequence:
                    high[partition] = low[partition]  # `read` raises what is wrong with it
                elif record.version == sequence and record.timestamp_ms >= oldest_ms:
                    high[partition] = sequence
                else:
                    low[partition] = sequence + 1
            asked = {p: (low[p] + high[p]) // 2 for p in asked}
        return low
