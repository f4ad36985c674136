"""Queue of unread files, from which epochs of a given number of rows are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from dagster_jet.connectors.files.input_folder import InputFolder
from dagster_jet.connectors.files.row_size import RowSize
from dagster_jet.connectors.files.slices import Slice, cut
from dagster_jet.contract import Lag

_ABOUT = 1.05
"""Allowed factor over the requested size."""
_FIRST_GUESS_BYTES_PER_ROW = 100.0
_FIRST_GUESS_INFLATION = {"parquet": 4.0}


@dataclass
class WaitingFiles:
    """Unread files of one source."""

    folder: InputFolder
    can_be_cut: bool
    """Whether parts of files can be read."""
    bytes_per_row: float = _FIRST_GUESS_BYTES_PER_ROW
    _parts: deque[Slice] = field(default_factory=deque)
    """Unread part of each file."""
    _bytes: int = 0
    _is_measured: bool = False
    """Whether `bytes_per_row` is from rows read or a snapshot, which beats a single file's size."""
    _has_row_size: bool = False

    def __post_init__(self) -> None:
        self._inflation = _FIRST_GUESS_INFLATION.get(self.folder.format, 1.0)
        """Factor from bytes in files to bytes in memory."""

    @property
    def first(self) -> Slice | None:
        """Slice to read next; None if no file waits."""
        return self._parts[0] if self._parts else None

    # --- row size ---------------------------------------------------------------------------------

    @property
    def needs_row_size(self) -> bool:
        """Whether the row size is still unknown."""
        return not self._has_row_size

    def restore(self, bytes_per_row: float) -> None:
        """Restores a snapshot's value."""
        self.bytes_per_row, self._is_measured = bytes_per_row, True

    def take_row_size(self, size: RowSize) -> None:
        """Takes the row size of one file."""
        self._has_row_size = True
        self._inflation = size.in_memory / size.in_file
        if not self._is_measured:
            self.bytes_per_row = max(1.0, size.in_file)

    def measure(self, parts: Iterable[Slice], rows: int) -> None:
        """Updates the row size from slices that were read."""
        if rows > 0:
            size = sum(part.size for part in parts)
            self.bytes_per_row = max(1.0, 0.5 * self.bytes_per_row + 0.5 * size / rows)
            self._is_measured = self._has_row_size = True

    # --- queue ------------------------------------------------------------------------------------

    def replace(self, parts: Iterable[Slice]) -> None:
        """Replaces the queue by the unread slices of a newer listing."""
        self._parts = deque(parts)
        self._bytes = sum(rest.size for rest in self._parts)

    def lag(self) -> Lag:
        """Returns the unread input."""
        return Lag(
            items=max(len(self._parts), int(self._bytes / self.bytes_per_row)),
            details={"files": len(self._parts), "bytes": self._bytes},
            bytes=int(self._bytes * self._inflation),
        )

    def take(self, max_rows: int) -> tuple[Slice, ...]:
        """Takes whole files with about `max_rows` rows in total, at least one file; or a part of
        one file. Returns () if no file waits."""
        if not self._parts:
            return ()
        budget, first = max_rows * self.bytes_per_row, self._parts[0]
        part = self._cut(first, budget) if self.can_be_cut else first
        self._parts.popleft()
        if part.end < first.end:
            self._parts.appendleft(replace(first, begin=part.end))
        taken = [part]
        # Two files with the same number of rows rarely have the same size.
        budget *= _ABOUT
        budget -= part.size
        if part.is_whole:
            while self._parts and self._parts[0].is_whole and budget >= self._parts[0].size:
                taken.append(self._parts.popleft())
                budget -= taken[-1].size
        self._bytes -= sum(part.size for part in taken)
        return tuple(taken)

    def _cut(self, part: Slice, budget: float) -> Slice:
        with self.folder.errors_named(part.path):
            return cut(self.folder.place, part, budget, self.folder.format)
