"""Offset ranges of an epoch, divided evenly among partitions and among tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dagster_jet.connectors.kafka.offsets import Partition

ROWS_PER_TASK = 10_000
"""Up to this many offsets are read by one task: each piece of a range costs a seek."""


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, `stop` excluded. Not every offset is a message: transactions have
    markers, and compaction leaves gaps."""

    partition: Partition
    start: int
    stop: int
    alone: bool = False
    """Whether the source reads no other partition."""

    def __len__(self) -> int:
        return self.stop - self.start


def names_of(ranges: Sequence[Range]) -> tuple[str, ...]:
    """Names of their partitions, each once."""
    return tuple(sorted({one.partition.name for one in ranges}))


def share(waiting: Mapping[Partition, int], most: int) -> dict[Partition, int]:
    """Takes about `most` items in all, equally from each partition as far as available, so that no
    partition gets ahead of the others in event time."""
    left, taken = max(1, most), dict.fromkeys(waiting, 0)
    open_ = sorted((count, partition) for partition, count in waiting.items() if count)
    for place, (count, partition) in enumerate(open_):
        taken[partition] = min(count, -(-left // (len(open_) - place)))
        left -= taken[partition]
        if left <= 0:
            break
    return {partition: count for partition, count in taken.items() if count}


def by_task(ranges: Sequence[Range], tasks: int) -> list[tuple[Range, ...]]:
    """Ranges per task, with about the same number of offsets each."""
    total = sum(map(len, ranges))
    wanted = max(1, min(tasks, -(-total // ROWS_PER_TASK)))
    size = -(-total // wanted)
    found: list[list[Range]] = [[]]
    room = size
    for one in ranges:
        start = one.start
        while start < one.stop:
            if room == 0:
                found.append([])
                room = size
            stop = min(one.stop, start + room)
            found[-1].append(replace(one, start=start, stop=stop))
            room -= stop - start
            start = stop
    return [tuple(each) for each in found if each]
