"""Parses offsets, codecs and encodings of the column chunks from a Parquet footer.

pyarrow's `FileMetaData.row_group(n).column(m)` has them, too. But if a damaged footer contains
contradictory page sizes, that call ends the process with an uncaught C++ error.
https://github.com/apache/parquet-format (``parquet.thrift``, in Thrift's compact protocol)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import SEEK_END
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet

from dagster_jet.connectors.files.watched import Watched

MAGIC = b"PAR1"
_TAIL_BYTES = 64 << 10
"""Size of the first read; most footers are shorter."""
_ROW_GROUPS = 4  # of FileMetaData
_COLUMNS = 1  # of RowGroup
_COLUMN = 3  # of ColumnChunk
_ENCODINGS, _CODEC, _DATA_PAGES, _DICTIONARY = 2, 4, 9, 11  # of ColumnMetaData

PLAIN_CODECS = frozenset({0, 1, 2, 6})
"""UNCOMPRESSED, SNAPPY, GZIP, ZSTD."""
PLAIN_ENCODINGS = frozenset({0, 2, 3, 4, 8})
"""PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY."""


@contextmanager
def open_parquet(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Yields the stream for pyarrow to read from, and classifies errors.

    Raises:
        pa.ArrowInvalid: the content is damaged or not Parquet.
        OSError: the stream cannot be read now.
    """
    watched = Watched(stream)
    try:
        yield cast(BinaryIO, watched)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if not watched.has_failed:
            raise pa.ArrowInvalid(
                f"the file is damaged or is not a Parquet file: {error}"
            ) from error
        raise OSError(str(error)) from error


@dataclass(frozen=True)
class ColumnChunk:
    """A column of a row group."""

    begin: int
    """Offset of the first page in the file, in bytes."""
    codec: int
    encodings: frozenset[int]


def row_groups(file: BinaryIO) -> list[int]:
    """Returns the offsets of the row groups."""
    return [columns[0].begin for columns in column_chunks(file)]


def column_chunks(file: BinaryIO) -> list[list[ColumnChunk]]:
    """Returns the column chunks of each row group.

    Raises:
        pa.ArrowInvalid: the footer is damaged.
    """
    try:
        read = _Compact(_footer(file)).struct()
        groups = [
            [_chunk(column[_COLUMN]) for column in group[_COLUMNS]]
            for group in read.get(_ROW_GROUPS, ())
        ]
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise pa.ArrowInvalid("the footer is not as Parquet has it") from error
    if not all(groups):
        raise pa.ArrowInvalid("a row group has no columns")
    return groups


def _footer(file: BinaryIO) -> bytes:
    size = file.seek(0, SEEK_END)
    file.seek(max(0, size - _TAIL_BYTES))
    tail = file.read()
    length = int.from_bytes(tail[-8:-4], "little") + 8  # and the magic bytes
    if tail[-4:] != MAGIC or length > size:
        raise ValueError("the file does not end as Parquet does")
    if length > len(tail):
        file.seek(max(0, size - length))
        tail = file.read()
    return tail[-length:-8]


def _chunk(read: dict[int, Any]) -> ColumnChunk:
    begin = read.get(_DICTIONARY) or read[_DATA_PAGES]
    return ColumnChunk(int(begin), int(read[_CODEC]), frozenset(map(int, read[_ENCODINGS])))


@dataclass
class _Compact:
    """Decodes Thrift's compact protocol: a struct becomes a dict by field number."""

    data: bytes
    at: int = 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 0x0F
            number = number + step if step else self._integer()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()  # a boolean within a list
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            return self._bytes(8)  # a double, not used
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            head = self._byte()
            size = head >> 4
            count = self._varint() if size == 15 else size
            return [self._value(head & 0x0F) for _ in range(count)]
        if kind == 12:
            return self.struct()
        raise TypeError(f"a value of the unknown kind {kind}")

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
