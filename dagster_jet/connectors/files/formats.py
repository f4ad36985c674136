"""Encoders from Arrow batches to files: JSON lines, CSV, Parquet."""

from __future__ import annotations

from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dagster_jet.connectors.files import json_lines


class Encoder(Protocol):
    """Writes batches of one schema to one file."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def finish(self) -> None:
        """Writes what the format ends with; the file stays open."""


def open_encoder(format: str, file: BinaryIO, schema: pa.Schema, *, rendered: bool) -> Encoder:
    """`rendered`: the batches have one column of text, each value a line with its end."""
    if format == "json":
        return _LinesEncoder(file, rendered)
    if format == "csv":
        return _CsvEncoder(file, schema)
    return _ParquetEncoder(file, schema)


class _LinesEncoder:
    def __init__(self, file: BinaryIO, rendered: bool) -> None:
        self._file = file
        self._rendered = rendered

    def write(self, batch: pa.RecordBatch) -> None:
        if self._rendered:
            self._file.write(json_lines.text_of(batch.column(0)))
        else:
            self._file.write(json_lines.encode(batch))

    def finish(self) -> None:
        """Every line is complete."""


class _CsvEncoder:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pyarrow.csv.CSVWriter(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()


class _ParquetEncoder:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pyarrow.parquet.ParquetWriter(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()
