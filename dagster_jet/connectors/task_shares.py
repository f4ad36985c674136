"""Assignment of a split's parts to tasks, fixed in advance or looked up at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class TaskShares(Protocol[T_co]):
    """Parts of a split, by task."""

    @property
    def tasks(self) -> int: ...

    def to(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Sequence[T_co]]:
        """Yields the shares of a task; its input rows are the shares' numbers."""
        ...


@dataclass(frozen=True)
class FixedShares(Generic[T]):
    """Shares that are fixed when the tasks are made."""

    each: tuple[tuple[T, ...], ...]

    @property
    def tasks(self) -> int:
        return len(self.each)

    def to(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Sequence[T]]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield self.each[number]


@dataclass(frozen=True)
class WholeSplit(Generic[T]):
    """One task reads the whole split and looks it up when it runs, in a prepared frame."""

    wanted: Callable[[], Sequence[T]]
    tasks: int = 1

    def to(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Sequence[T]]:
        for _ in batches:
            yield self.wanted()
