"""Encoders from Arrow batches to files: JSON lines, CSV, Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from gzip import GzipFile
from typing import BinaryIO, Literal, Protocol, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from dagster_jet.connectors.values import json_lines
from dagster_jet.operators.rows.far_times import has_far

FileFormat: TypeAlias = Literal["json", "csv", "parquet"]
Compression: TypeAlias = Literal["none", "gzip", "snappy", "zstd"]
COMPRESSIONS = {
    "json": ("none", "gzip"),
    "csv": ("none", "gzip"),
    "parquet": ("snappy", "zstd", "gzip", "none"),
}
"""Compressions of each format, its default first."""
_GZIP_LEVEL = 6


class Encoder(Protocol):
    """Writes batches of one schema to one file."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def finish(self) -> None:
        """Writes the end of the file, but does not close it."""


def open_encoder(
    format: str,
    file: BinaryIO,
    schema: pa.Schema,
    *,
    rendered: bool,
    compression: str | None = None,
) -> Encoder:
    """Returns the format's encoder.

    Args:
        rendered: batches have one string column of whole lines.
        compression: None: the format's default.
    """
    if format == "parquet":
        return _ParquetEncoder(file, schema, compression or COMPRESSIONS[format][0])
    if compression == "gzip":
        zipped = GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0)
        return _Zipped(_text_encoder(format, cast(BinaryIO, zipped), schema, rendered), zipped)
    return _text_encoder(format, file, schema, rendered)


def _text_encoder(format: str, file: BinaryIO, schema: pa.Schema, rendered: bool) -> Encoder:
    return _LinesEncoder(file, rendered) if format == "json" else _CsvEncoder(file, schema)


@dataclass
class _Zipped:
    """Ends the compressed stream behind its text."""

    _text: Encoder
    _file: GzipFile

    def write(self, batch: pa.RecordBatch) -> None:
        self._text.write(batch)

    def finish(self) -> None:
        self._text.finish()
        self._file.close()


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
        """Writes nothing: every line is complete."""


def can_be_text(type: pa.DataType) -> bool:
    """Returns whether a CSV file can hold values of the type."""
    return not (pa.types.is_nested(type) or pa.types.is_binary(type) or pa.types.is_duration(type))


class _CsvEncoder:
    """Writes CSV that our source and Spark's reader can read back."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._only = len(schema) == 1
        pyarrow.csv.write_csv(schema.empty_table(), file)

    def write(self, batch: pa.RecordBatch) -> None:
        rows = pa.table(
            [self._readable(column) for column in batch.columns], names=batch.schema.names
        )
        pyarrow.csv.write_csv(rows, self._file, pyarrow.csv.WriteOptions(include_header=False))

    def _readable(self, column: pa.Array) -> pa.Array:
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
            column = _named_numbers(column)
        if has_far(column):  # Arrow writes a wrong year, or none
            as_json = json_lines.values_encoder(column.type)
            assert as_json is not None
            column = pc.utf8_trim(as_json(column), '"')
        if self._only and column.null_count:
            # Readers skip empty lines.
            return column.cast(pa.string()).fill_null("")
        return column

    def finish(self) -> None:
        """Writes nothing: every line is complete."""


def _named_numbers(column: pa.Array) -> pa.Array:
    """Converts numbers to strings, with Spark's CSV names for infinities and NaN."""
    texts = column.cast(pa.string())
    for number, name in (("nan", "NaN"), ("inf", "Inf"), ("-inf", "-Inf")):
        texts = pc.if_else(pc.equal(texts, number), name, texts)
    return texts


class _ParquetEncoder:
    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self._writer = pyarrow.parquet.ParquetWriter(file, schema, compression=compression)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()
