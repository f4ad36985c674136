"""Slices of files: usually whole files, and byte ranges of files too large for an epoch.

A row belongs to the range in which it begins, so every row is read once, wherever a file is cut.
Lines begin after a line end, Parquet rows with their row group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from dagster_jet.connectors.files.parquet_footer import open_parquet, row_groups
from dagster_jet.connectors.files.places.place import InputFile, InputPlace

COMPRESSED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")
"""Suffixes of text files that can only be read from their beginning."""

_LEAST_BYTES_TO_CUT = 8 << 20
"""Smaller files are not cut: Spark's own readers are faster."""
_LEAST_BYTES = 1 << 20
_PACKED = {"parquet": 8}
"""Estimated rows per byte relative to text formats."""
_REST = 1.5
"""A remainder up to this factor of the requested size is not cut."""


@dataclass(frozen=True, order=True)
class Slice:
    """Byte range of a file; contains the rows that begin in it."""

    file: InputFile
    begin: int
    end: int

    @classmethod
    def whole(cls, file: InputFile) -> Slice:
        return cls(file, 0, file.size)

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def is_whole(self) -> bool:
        return self.begin == 0 and self.end == self.file.size

    def read(self) -> InputFile:
        """Returns the file's journal entry after this slice and all before it were read."""
        return replace(self.file, read_to=None if self.end == self.file.size else self.end)


def cut(place: InputPlace, rest: Slice, size: float, format: str) -> Slice:
    """Returns the first `size` bytes or so of a slice; the whole slice if cutting does not pay.

    Raises:
        OSError: the footer of a Parquet file cannot be read now.
    """
    packed = _PACKED.get(format, 1)
    if rest.file.size < _LEAST_BYTES_TO_CUT // packed:
        return rest
    if format != "parquet" and is_compressed(rest.path):
        return rest
    size = max(size, _LEAST_BYTES // packed)
    if rest.size <= _REST * size:
        return rest
    end = rest.begin + int(size)
    if format == "parquet":
        begins = _row_groups_of(place, rest.file)
        end = min((at for at in begins if end <= at < rest.end), default=rest.end)
    return replace(rest, end=end)


def _row_groups_of(place: InputPlace, file: InputFile) -> list[int]:
    with place.open(file) as stream:
        try:
            with open_parquet(stream) as opened:
                return row_groups(opened)
        except pa.ArrowInvalid:  # its reader raises the error
            return []


def is_compressed(path: str) -> bool:
    return path.endswith(COMPRESSED)
