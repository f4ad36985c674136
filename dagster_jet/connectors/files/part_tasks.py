"""Base class of tasks that read parts of files, with unreadable files as dead letters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pyarrow as pa

from dagster_jet.connectors.files.bad_rows import FAULT_COLUMN, FILE_COLUMN
from dagster_jet.connectors.files.partition_folders import constants
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.text_lines import is_decompressed
from dagster_jet.connectors.task_shares import FixedShares, TaskShares
from dagster_jet.errors import BadRowError

_TASK_BYTES = 64 << 20
"""Largest part of a file for a task; smaller if cores would otherwise be idle."""
_LEAST_TASK_BYTES = 2 << 20
_TASKS_PER_CORE = 2


def divided(
    wanted: Sequence[Slice], format: str, parallelism: int, *, as_they_are: bool = False
) -> FixedShares[Slice]:
    """Divides slices into shares of about the same size that keep the order of the slices.

    Args:
        as_they_are: do not split slices.
    """
    tasks = _TASKS_PER_CORE * parallelism
    even = sum(part.size for part in wanted) // tasks + 1
    size = max(_LEAST_TASK_BYTES, min(even, _TASK_BYTES))
    if as_they_are:
        parts = list(wanted)
    else:
        parts = [part for one in wanted for part in _parts(one, format, size)]
    count = min(tasks, len(parts))
    bounds = [len(parts) * task // count for task in range(count + 1)]
    return FixedShares(tuple(tuple(parts[first:last]) for first, last in pairwise(bounds)))


def _parts(one: Slice, format: str, size: int) -> Iterator[Slice]:
    if format != "parquet" and is_decompressed(one.path):
        yield one
        return
    for begin in range(one.begin, max(one.end, one.begin + 1), size):
        yield Slice(one.file, begin, min(begin + size, one.end))


@dataclass(frozen=True)
class ReadParts(ABC):
    """Reads the rows of a task's parts of files."""

    place: tuple[str, StorageOptions]
    shares: TaskShares[Slice]
    names_files: bool
    """Adds `FILE_COLUMN` and `FAULT_COLUMN`. An unreadable part then becomes one row with only
    these two columns set; otherwise it raises `BadRowError`."""
    folders: pa.Schema
    """Columns behind those of `rows`: from the names of the file's folders, and about the file."""

    checks_whole_files: ClassVar[bool]
    """Whether `check` has the same result for every part of a file."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in self.shares.to(batches):
            for part in parts:
                yield from self._named(part) if self.names_files else self._whole_rows(part)

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Schema of `rows`."""

    @abstractmethod
    def rows(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Yields the rows that begin in a part.

        Raises:
            BadRowError: the file does not match its declared format or schema.
            OSError: it cannot be read now.
        """

    @abstractmethod
    def check(self, part: Slice) -> None:
        """Raises `BadRowError` if `rows` would raise it, possibly after some rows."""

    def _whole_rows(self, part: Slice) -> Iterator[pa.RecordBatch]:
        values = constants(part.file, self.folders)
        names = [*self.schema.names, *self.folders.names]
        for batch in self.rows(part):
            named = (pa.repeat(value, batch.num_rows) for value in values)
            yield pa.RecordBatch.from_arrays([*batch.columns, *named], names)

    def _named(self, part: Slice) -> Iterator[pa.RecordBatch]:
        try:
            constants(part.file, self.folders)
            self.check(part)
        except BadRowError as error:
            if part.begin == 0 or not self.checks_whole_files:
                yield self._fault(part, error)
            return
        for batch in self._whole_rows(part):
            place = pa.repeat(pa.scalar(part.path), batch.num_rows)
            yield batch.append_column(FILE_COLUMN, place).append_column(
                FAULT_COLUMN, pa.nulls(batch.num_rows, pa.string())
            )

    def _fault(self, part: Slice, error: BadRowError) -> pa.RecordBatch:
        fields = [*self.schema, *self.folders]
        nothing = [pa.nulls(1, field.type) for field in fields]
        columns = [*nothing, pa.array([part.path]), pa.array([error.message])]
        names = [*(field.name for field in fields), FILE_COLUMN, FAULT_COLUMN]
        return pa.RecordBatch.from_arrays(columns, names)
