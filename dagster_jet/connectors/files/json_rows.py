"""Parses JSON lines with Arrow, only where the result certainly equals that of Spark's parser.

Arrow's parser takes a third of the CPU time of Spark's and needs no warm-up. The two agree on
objects of plain values, one per line. A block with anything else (a number where a string is
declared, a comment, another time format) is refused by Arrow or detected here. Spark then parses
the block (`parse` returns None) and reports all errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_TIME = r"^[12]\d{3}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?"
"""The only time format on which both agree."""

_DEPTH_MAX = 900
"""Spark's parser accepts a nesting depth of 1,000 and numbers of 1,000 characters."""
_NAME_MAX = 50_000
_MANY_DIGITS = b"0" * 300
"""A number has at most three runs of digits."""
_SHAPES = bytes.maketrans(b"[123456789", b"{000000000")


def can_parse(schema: StructType, options: Mapping[str, str]) -> bool:
    """Returns whether Arrow and Spark read these types alike. They do not if a reader option may
    change the meaning of a line."""
    known = {"mode", "columnnameofcorruptrecord"}
    return {name.lower() for name in options} <= known and _is_plain(schema)


def _is_plain(type: DataType) -> bool:
    from pyspark.sql import types as spark

    if isinstance(type, spark.StructType):
        names = [field.name.lower() for field in type]
        # Fields whose names are equal to Spark are ambiguous.
        return len(set(names)) == len(names) > 0 and all(_is_plain(f.dataType) for f in type)
    if isinstance(type, spark.ArrayType):
        return _is_plain(type.elementType)
    # Not `float`: Spark rounds it twice.
    plain = (spark.LongType, spark.IntegerType, spark.DoubleType, spark.BooleanType)
    # Not its subclasses: a `char` is padded.
    return isinstance(type, (*plain, spark.TimestampType)) or type == spark.StringType()


def parse(block: bytes, schema: pa.Schema, *, is_utc: bool) -> pa.RecordBatch | None:
    """Parses whole lines; returns None if Spark has to parse them.

    Args:
        schema: Spark's schema, with types that `can_parse`; times are ``timestamp("us", tz)``.
            Other fields of the lines are ignored.
        is_utc: times without a zone are in UTC.
    """
    rows = _rows_of(block)
    if not rows:
        return None
    try:
        table = _read(block, pa.schema([(f.name, _as_read(f.type)) for f in schema]))
        if table.num_rows != rows:
            return None
        columns = [
            _as_declared(table.column(field.name).combine_chunks(), field.type, is_utc)
            for field in schema
        ]
    except (pa.ArrowException, _UncertainError):
        return None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def is_object_per_line(block: bytes) -> bool:
    """Returns whether each line is certainly one object to any JSON parser."""
    rows = _rows_of(block)
    try:
        return rows > 0 and _read(block, pa.schema([("", pa.null())])).num_rows == rows
    except pa.ArrowException:
        return False


def _read(block: bytes, schema: pa.Schema) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(block),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _rows_of(block: bytes) -> int:
    """Returns the number of lines if each is an object from its first byte to its last; else 0.

    Then no row contains a line end: within an object ``}`` is never followed by ``{`` with only
    white space between, and strings contain no line ends.
    """
    block = block.removesuffix(b"\n")
    ends = block.count(b"\n")
    if not (block.startswith(b"{") and block.endswith(b"}")) or block.count(b"}\n{") != ends:
        return 0
    # Spark also ends lines at "\r", and replaces bytes that are not UTF-8.
    if b"\r" in block or not _is_utf8(block) or _may_be_too_large(block):
        return 0
    return ends + 1


def _may_be_too_large(block: bytes) -> bool:
    """Returns whether a name, number or nesting depth may exceed the limits of Spark's parser."""
    long_lines = [line for line in block.split(b"\n") if len(line) > _DEPTH_MAX]
    if not long_lines:
        return False
    shapes = [line.translate(_SHAPES) for line in long_lines]
    return any(
        len(shape) > _NAME_MAX or shape.count(b"{") > _DEPTH_MAX or _MANY_DIGITS in shape
        for shape in shapes
    )


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- types ---------------------------------------------------------------------------------------


class _UncertainError(Exception):
    """A value that Spark may parse differently."""


def _as_read(type: pa.DataType) -> pa.DataType:
    """Replaces times by strings: Arrow accepts some times that Spark refuses."""
    return _replaced(type, lambda leaf: pa.string() if pa.types.is_timestamp(leaf) else leaf)


def _replaced(type: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(type):
        return pa.struct([(field.name, _replaced(field.type, leaf)) for field in type])
    if pa.types.is_list(type):
        return pa.list_(_replaced(type.value_type, leaf))
    return leaf(type)


def _as_declared(column: pa.Array, type: pa.DataType, is_utc: bool) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):  # no rows
        column = pa.concat_arrays(column.chunks)
    if pa.types.is_timestamp(type):
        return _times(column, type, is_utc)
    if pa.types.is_floating(type):
        return _without_negative_zero(column)
    if pa.types.is_struct(type):
        fields = [
            _as_declared(column.field(number), field.type, is_utc)
            for number, field in enumerate(type)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(type), mask=column.is_null())
    if pa.types.is_list(type):
        values = _as_declared(column.values, type.value_type, is_utc)
        return pa.ListArray.from_arrays(column.offsets, values, type, mask=column.is_null())
    return column


def _without_negative_zero(column: pa.Array) -> pa.Array:
    """Raises `_UncertainError` for -0: Spark reads ``-0`` without and ``-0.0`` with a sign."""
    values = column.to_numpy(zero_copy_only=False)
    if np.any((values == 0) & np.signbit(values)):
        raise _UncertainError
    return column


def _times(texts: pa.Array, type: pa.DataType, is_utc: bool) -> pa.Array:
    if _all_match(texts, _TIME + "Z$"):
        return texts.cast(type)
    if is_utc and _all_match(texts, _TIME + "$"):
        return texts.cast(pa.timestamp("us")).cast(type)
    raise _UncertainError


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False
