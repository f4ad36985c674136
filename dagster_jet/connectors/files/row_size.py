"""Estimates the row size of a file from its first bytes or its footer only."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet

from dagster_jet.connectors.files.places.place import InputFile, InputPlace
from dagster_jet.connectors.files.slices import is_compressed

_BEGINNING_BYTES = 64 << 10


@dataclass(frozen=True)
class RowSize:
    """Average bytes per row."""

    in_file: float
    in_memory: float
    """Uncompressed."""


def row_size(place: InputPlace, file: InputFile, format: str) -> RowSize | None:
    """Estimates the row size; None if unknown. Errors are left to the reader of the whole file."""
    if is_compressed(file.path):
        return None
    try:
        with place.open(file) as stream:
            if format == "parquet":
                return _of_footer(pyarrow.parquet.read_metadata(stream), file)
            return _of_lines(stream.read(_BEGINNING_BYTES))
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return None


def _of_footer(footer: pyarrow.parquet.FileMetaData, file: InputFile) -> RowSize | None:
    if footer.num_rows == 0:
        return None
    groups = range(footer.num_row_groups)
    uncompressed = sum(footer.row_group(number).total_byte_size for number in groups)
    return RowSize(file.size / footer.num_rows, uncompressed / footer.num_rows)


def _of_lines(beginning: bytes) -> RowSize | None:
    if not beginning:
        return None
    size = len(beginning) / max(1, beginning.count(b"\n"))
    return RowSize(size, size)
