"""Encoders from Arrow batches to files: JSON lines, CSV, Parquet.

JSON text is the same whether Spark renders it (`to_json`) or this module does, so that moving a
writer next to an operator does not change the output.
"""

from __future__ import annotations

import json
import math
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet


class Encoder(Protocol):
    """Writes batches of one schema to one file."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def finish(self) -> None:
        """Writes what the format ends with; the file stays open."""


def open_encoder(format: str, file: BinaryIO, schema: pa.Schema, *, rendered: bool) -> Encoder:
    """`rendered`: the batches have one string column, each value a finished line."""
    if format == "json":
        return _LinesEncoder(file, rendered)
    if format == "csv":
        return _CsvEncoder(file, schema)
    return _ParquetEncoder(file, schema)


def can_encode_json(schema: pa.Schema) -> bool:
    """True for flat columns whose text is certain; others are rendered by Spark."""
    return all(
        pa.types.is_string(f.type)
        or pa.types.is_integer(f.type)
        or pa.types.is_float64(f.type)
        or pa.types.is_boolean(f.type)
        or pa.types.is_timestamp(f.type)
        or pa.types.is_date32(f.type)
        for f in schema
    )


class _LinesEncoder:
    def __init__(self, file: BinaryIO, rendered: bool) -> None:
        self._file = file
        self._rendered = rendered

    def write(self, batch: pa.RecordBatch) -> None:
        if self._rendered:
            lines = batch.column(0).to_pylist()
            self._file.write(("\n".join(lines) + "\n").encode())
            return
        rows = pa.RecordBatch.from_arrays(
            [_as_json_values(column) for column in batch.columns], batch.schema.names
        ).to_pylist()
        for name in _columns_with_non_finite(batch):
            for row in rows:
                if row[name] is not None and not math.isfinite(row[name]):
                    row[name] = _NON_FINITE.get(row[name], "NaN")
        text = "\n".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows)
        self._file.write((text + "\n").encode())

    def finish(self) -> None:
        """Every line is complete."""


def _as_json_values(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        as_us = column.cast(pa.timestamp("us", tz="UTC"))
        return pc.strftime(as_us, format="%Y-%m-%dT%H:%M:%SZ")
    if pa.types.is_date32(column.type):
        return column.cast(pa.string())
    return column


_NON_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _columns_with_non_finite(batch: pa.RecordBatch) -> list[str]:
    return [
        field.name
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if pa.types.is_float64(field.type) and not pc.all(pc.is_finite(column), min_count=0).as_py()
    ]


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
