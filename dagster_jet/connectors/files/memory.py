"""Bounded memory of the files that a source has read, so that none is read twice.

A file is remembered while it exists. A deleted file is forgotten after `remember_ms`; until then it
may reappear, from a copy or in a stale listing. The newest forgotten file is kept as a mark: a file
that appears later and is not newer than the mark may have been read before, which can no longer be
decided.

With `max_file_age_ms` existing files are forgotten, too, once they are older than that. Files that
are not newer than the newest such file are then skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.snapshot.storage.journal_parts import PART_COLUMN, PARTS, part_of

Mark: TypeAlias = tuple[int, str]
"""Modification time in ns and path: files are read in this order."""

_NS = 1_000_000
_GONE_COLUMN = "gone_ms"


def mark_of(file: InputFile) -> Mark:
    return file.mtime_ns, file.path


@dataclass
class FileMemory:
    """Memory of one source. `get` and `read_whole` may run concurrently with all other methods."""

    remember_ms: int
    max_file_age_ms: int | None = None
    forgotten: Mark | None = None
    """Newest file that was forgotten after its deletion."""
    passed: Mark | None = None
    """Newest file that was forgotten because of its age."""
    _parts: tuple[dict[str, InputFile], ...] = field(
        default_factory=lambda: tuple({} for _ in range(PARTS))
    )
    unfinished: set[str] = field(default_factory=set)
    """Paths of files that were read in part."""
    _gone_ms: dict[str, int] = field(default_factory=dict)
    """Wall-clock time at which a deleted file was first missed, by path."""

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[InputFile]:
        for part in self._parts:
            yield from part.values()

    def get(self, path: str) -> InputFile | None:
        return self._parts[part_of(path)].get(path)

    def read_whole(self, path: str) -> InputFile | None:
        """Returns a file that was read completely, as it was then."""
        file = self.get(path)
        return None if file is None or file.read_to is not None else file

    def put(self, file: InputFile) -> None:
        self._parts[part_of(file.path)][file.path] = file
        (self.unfinished.discard if file.read_to is None else self.unfinished.add)(file.path)

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        """Restores the results of `as_table` and `marks`, with the newest rows of a path first."""
        self.forgotten = _mark(position.get("forgotten"))
        self.passed = _mark(position.get("passed"))
        for batch in [] if journal is None else journal.to_batches():
            for row in batch.to_pylist():
                file = file_of_row(row)
                if self.get(file.path) is None:
                    self.put(file)
                    if row[_GONE_COLUMN] is not None:
                        self._gone_ms[file.path] = row[_GONE_COLUMN]

    def marks(self) -> dict[str, Any]:
        """Returns the marks for the position; empty if no file was forgotten."""
        marks = {"forgotten": self.forgotten, "passed": self.passed}
        return {name: list(mark) for name, mark in marks.items() if mark is not None}

    def may_have_been_read(self, file: InputFile) -> bool:
        """Returns whether an unknown file may have been read before it was deleted."""
        return self.forgotten is not None and mark_of(file) <= self.forgotten

    def is_passed(self, file: InputFile) -> bool:
        """Returns whether an unknown file is too old."""
        return self.passed is not None and mark_of(file) <= self.passed

    def sweep(
        self,
        parts: Collection[int],
        there: Collection[str],
        now_ms: int,
        *,
        keep: Collection[str],
        before: Mark | None,
    ) -> None:
        """Forgets files that need not be remembered any longer.

        Args:
            parts: parts of the memory to check.
            there: paths of a listing that is newer than all files read.
            now_ms: wall-clock time. A wrong clock does not invalidate the marks.
            keep: paths to remember.
            before: oldest waiting file; only older files are forgotten. None: no file waits.
        """
        for part in parts:
            for path, file in list(self._parts[part].items()):
                is_there = path in there
                if is_there:
                    self._gone_ms.pop(path, None)
                    is_old = self.max_file_age_ms is not None
                    wait_ms, since_ms = self.max_file_age_ms or 0, now_ms
                else:
                    is_old, wait_ms = True, self.remember_ms
                    since_ms = min(self._gone_ms.setdefault(path, now_ms), now_ms)
                    self._gone_ms[path] = since_ms
                is_old = (
                    is_old and file.read_to is None and file.mtime_ns <= (now_ms - wait_ms) * _NS
                )
                is_gone_long = is_there or since_ms <= now_ms - wait_ms
                if is_old and is_gone_long and path not in keep:
                    if before is None or mark_of(file) < before:
                        self._forget(part, file, is_there=is_there)

    def _forget(self, part: int, file: InputFile, *, is_there: bool) -> None:
        # Set the mark first: a concurrent poll must not take the file for a new one.
        if is_there:
            self.passed = max(self.passed or mark_of(file), mark_of(file))
        else:
            self.forgotten = max(self.forgotten or mark_of(file), mark_of(file))
        self._gone_ms.pop(file.path, None)
        del self._parts[part][file.path]

    def table(self, parts: Collection[int]) -> pa.Table:
        """Returns all journal rows of some parts."""
        files = [file for part in parts for file in self._parts[part].values()]
        return self.as_table(files)

    def as_table(self, files: Collection[InputFile]) -> pa.Table:
        """Returns the journal rows of some files."""
        return pa.table(
            {
                "path": pa.array([f.path for f in files], pa.string()),
                "size": pa.array([f.size for f in files], pa.int64()),
                "mtime_ns": pa.array([f.mtime_ns for f in files], pa.int64()),
                "checksum": pa.array([f.checksum for f in files], pa.uint64()),
                "etag": pa.array([f.etag or None for f in files], pa.string()),
                "read_to": pa.array([f.read_to for f in files], pa.int64()),
                _GONE_COLUMN: pa.array([self._gone_ms.get(f.path) for f in files], pa.int64()),
                PART_COLUMN: pa.array([part_of(f.path) for f in files], pa.int8()),
            }
        )


def file_of_row(row: Mapping[str, Any]) -> InputFile:
    """Converts a journal row to a file."""
    etag = row["etag"] or ""
    return InputFile(
        row["mtime_ns"], row["path"], row["size"], row["checksum"], etag, row["read_to"]
    )


def _mark(value: Any) -> Mark | None:
    return None if value is None else (int(value[0]), str(value[1]))
