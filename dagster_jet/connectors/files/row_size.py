"""How large a file's rows are, from its beginning or its footer: nothing else of it is read."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet

from dagster_jet.connectors.files.places.place import InputFile, InputPlace
from dagster_jet.connectors.files.slices import is_compressed

_BEGINNING_BYTES = 64 << 10


@dataclass(frozen=True)
class RowSize:
    """Bytes per row, on the average."""

    in_file: float
    in_memory: float
    """Uncompressed."""


def row_size(place: InputPlace, file: InputFile, format: str) -> RowSize | None:
    """None: the file does not show it. Whoever reads all of it says why."""
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
