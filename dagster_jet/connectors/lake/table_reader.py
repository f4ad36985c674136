"""The driver's side of a table that is read by version.

The position is the next row: version, file in the version, row in the file. The files that the
table had when a job began are those of one version, in the order of their names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dagster_jet.connectors.lake.added_rows import AddedFile, Piece, frame_of, shares_of
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.connectors.task_shares import WholeSplit
from dagster_jet.contract import Lag, SourceFrame, SourceReader, SplitParameters
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_BYTES_PER_ROW = 100
"""Guess for a file whose rows are not known."""


@dataclass(frozen=True)
class Head:
    """A version that a table had as its newest one."""

    number: int
    id: int | str | None
    """Differs from that of another version with this number, of a table that came back older. None:
    not known."""


@dataclass(frozen=True)
class Found:
    """Result of a poll: the files of the versions from `first` to before `next`."""

    table_id: str
    first: int
    next: int
    files: Sequence[AddedFile]
    contents: int
    """Version whose files a new job reads as the table's contents; -1: none."""
    head: Head | None


@dataclass
class TableReader(SourceReader):
    """Reader of one execution."""

    source: TableRead
    job: str
    stage: str
    _table_id: str | None = None
    _contents: int = -1
    _from: tuple[int, int, int] | None = None
    """Next row; None: a new job has not looked yet."""
    _next_version: int = 0
    """Version that the next poll begins with."""
    _head: Head | None = None
    """Newest version that was listed."""
    _waiting: deque[AddedFile] = field(default_factory=deque)

    @abstractmethod
    def poll(self) -> Found:
        """Lists the files of the versions that come next."""

    def existing(self, table: T | None) -> T:
        """Returns the table, or raises `SourceError` if there is none."""
        if table is None:
            raise SourceError(
                f"there is no table {self.source.name!r}.",
                job=self.job,
                stage=self.stage,
                cure="Bring it back.",
            )
        return table

    def check_table(self, table_id: str) -> None:
        """Raises `SourceError` if the table is another one than the job has read."""
        if self._table_id not in (None, table_id):
            raise SourceError(
                f"the table {self.source.name!r} is another one than the job has read.",
                job=self.job,
                stage=self.stage,
                cure="Bring it back, or read the new one with a job of another name.",
            )

    def older(self, what: str) -> SourceError:
        """Returns the error of a table that has lost versions, whose numbers are used again."""
        return SourceError(
            f"the table {self.source.name!r} came back as an older copy: the job has read its "
            f"{what}, which is not there.",
            job=self.job,
            stage=self.stage,
            cure="Bring the newer copy back. To read the table from its present contents on, start "
            "a job of another name.",
        )

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        if position["version"] is None:
            return
        self._table_id, self._contents = position["table"], position["contents"]
        self._from = position["version"], position["file"], position["row"]
        self._next_version = position["version"]
        if (head := position.get("head")) is not None:
            self._head = Head(*head)

    def position(self) -> dict[str, Any]:
        version, file, row = self._from or (None, 0, 0)
        return {
            "table": self._table_id,
            "contents": self._contents,
            "version": version,
            "file": file,
            "row": row,
            "head": None if self._head is None else [self._head.number, self._head.id],
        }

    def accept(self, found: Found) -> None:
        if self._from is None:
            self._table_id, self._contents = found.table_id, found.contents
            self._from, self._next_version = (found.first, 0, 0), found.first
        self._head = found.head
        version, file, _ = self._from
        for one in found.files:
            if one.version >= self._next_version and (one.version, one.number) >= (version, file):
                self._waiting.append(one)
        self._next_version = max(self._next_version, found.next)
        if not self._waiting:
            self._from = self._next_version, 0, 0

    # --- epochs ---

    def waiting(self) -> Lag:
        row = self._from[2] if self._from else 0
        rows = sum(_rows(one) for one in self._waiting) - (row if self._waiting else 0)
        size = sum(one.bytes for one in self._waiting)
        return Lag(
            max(rows, len(self._waiting)), {"files": len(self._waiting), "bytes": size}, size
        )

    def plan(self, max_rows: int) -> tuple[Piece, ...] | None:
        split: list[Piece] = []
        left = max(1, max_rows)
        while self._waiting and (left > 0 or self._waiting[0].is_joined):
            file, first = self._waiting[0], self._first_row()
            there = _rows(file) - first
            if file.rows is not None and there > left:
                split.append(Piece(file, first, first + left))
                self._from = file.version, file.number, first + left
                break
            split.append(Piece(file, first, None))
            self._waiting.popleft()
            left -= there
            self._from = self._after(file)
        return tuple(split) or None

    def _first_row(self) -> int:
        assert self._from is not None, "files wait"
        file, (version, number, row) = self._waiting[0], self._from
        return row if (file.version, file.number) == (version, number) else 0

    def _after(self, file: AddedFile) -> tuple[int, int, int]:
        if self._waiting:
            return self._waiting[0].version, self._waiting[0].number, 0
        return self._next_version, 0, 0

    def frame(self, spark: SparkSession, split: Sequence[Piece]) -> SourceFrame:
        shares = shares_of(spark, split)
        return SourceFrame(frame_of(spark, self.source, shares, self.stage))

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Sequence[Piece]], partitions: int
    ) -> SourceFrame | None:
        return SourceFrame(frame_of(spark, self.source, WholeSplit(split), self.stage))

    def split_parameters(self, split: Sequence[Piece]) -> SplitParameters | None:
        return SplitParameters(tuple(split))

    def verify(self, split: Sequence[Piece], rows: int) -> None:
        if all(piece.file.rows is not None for piece in split):
            wanted = sum(_count(piece) for piece in split)
            if wanted != rows:
                raise SourceError(
                    f"files of the table {self.source.name!r} have {rows} rows, and by its "
                    f"metadata {wanted}.",
                    job=self.job,
                    stage=self.stage,
                    position=", ".join(sorted({one.file.path for one in split})[:3]),
                    cure="Repair the table.",
                )


def _rows(file: AddedFile) -> int:
    return max(1, file.bytes // _BYTES_PER_ROW) if file.rows is None else file.rows


def _count(piece: Piece) -> int:
    return (_rows(piece.file) if piece.end is None else piece.end) - piece.first
