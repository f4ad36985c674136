"""Parts of files: whole ones as a rule, and byte ranges of files that are too large for an epoch.

A row belongs to the range in which it begins, wherever that was cut: however an execution cuts, it
reads every row once. Lines begin behind a line end, rows of Parquet with their row group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from dagster_jet.connectors.files.parquet_footer import open_parquet, row_groups
from dagster_jet.connectors.files.places.place import InputFile, InputPlace

COMPRESSED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst")
"""Ends of the names of text files that can only be read from their beginning."""

_LEAST_BYTES_TO_CUT = 8 << 20
"""Smaller files are read whole: Spark's own readers are faster."""
_LEAST_BYTES = 1 << 20
_PACKED = {"parquet": 8}
"""How many times as many rows are in a byte, about."""
_REST = 1.5
"""Of what was asked for: a rest that is hardly larger is not cut once more."""


@dataclass(frozen=True, order=True)
class Slice:
    """Bytes of a file: what begins in them belongs to it."""

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
        """The file as it stands in the journal once this slice, and all before it, were read."""
        return replace(self.file, read_to=None if self.end == self.file.size else self.end)


def cut(place: InputPlace, rest: Slice, size: float, format: str) -> Slice:
    """The beginning of a slice, about `size` bytes; all of it where that is better.

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
        except pa.ArrowInvalid:  # whoever reads it says so
            return []


def is_compressed(path: str) -> bool:
    return path.endswith(COMPRESSED)
