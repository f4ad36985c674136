"""Encodes Arrow batches as JSON lines, column by column.

The text is the same as Spark's `to_json`, so that moving a writer next to an operator does not
change the output. Exception: for fractional numbers each side writes the shortest text that it
reads back. Values are joined as columns, because a dict and a `json.dumps` per row took as long as
the rest of a stage.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.values.last_batch import OfLastBatch
from dagster_jet.operators.rows.far_times import with_sign

_ESCAPED = '["\\\\\x00-\x1f]'
"""Characters that JSON strings must escape."""
_ESCAPES = {number: f"\\u{number:04X}" for number in range(0x20)} | {
    ord(char): f"\\{letter}" for char, letter in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)
}
"""As Spark escapes them: hexadecimal digits are upper case."""
_NO_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
"""Spark's JSON strings for non-finite numbers, by Arrow's text."""
_FOUR_DIGITS = {"D": (-719_528, 2_932_896), "s": (-62_167_219_200, 253_402_300_799)}
"""First and last of the years 0 to 9999, by unit."""


def can_encode(schema: pa.Schema) -> bool:
    """Returns whether all columns are flat and their text certainly equals Spark's."""
    return all(values_encoder(field.type) is not None for field in schema)


@OfLastBatch
def encode(batch: pa.RecordBatch) -> memoryview:
    """Encodes each row as a line with line end. The batch has rows, and `can_encode` its schema."""
    return text_of(objects(batch, "\n"))


def objects(batch: pa.RecordBatch, end: str = "") -> pa.Array:
    """Encodes each row as the text of an object, followed by `end`. The batch has columns, and
    `can_encode` its schema."""
    parts: list[pa.Array | str] = []
    for number, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        as_text = values_encoder(field.type)
        assert as_text is not None
        name = field.name.translate(_ESCAPES)
        parts.append(f'{"," if number else "{"}"{name}":')
        parts.append(pc.coalesce(as_text(column), pa.scalar("null")))
    return pc.binary_join_element_wise(*parts, f"}}{end}", "")


def text_of(lines: pa.Array) -> memoryview:
    """Returns the concatenated values of a string column, without a copy."""
    _, offsets, data = lines.buffers()
    if data is None:
        return memoryview(b"")
    width = np.int64 if pa.types.is_large_string(lines.type) else np.int32
    places = np.frombuffer(offsets, width)
    return memoryview(data)[places[lines.offset] : places[lines.offset + len(lines)]]


def values_encoder(type: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """Returns the function that converts values of a type to JSON and keeps nulls. None: it may
    differ from Spark."""
    if pa.types.is_string(type):
        return _texts
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return _plain
    if pa.types.is_float64(type):
        return _fractions
    if pa.types.is_timestamp(type):
        return _times
    if pa.types.is_date32(type):
        return _days
    return None


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _quoted(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")


def _texts(column: pa.Array) -> pa.Array:
    to_escape = pc.match_substring_regex(column, _ESCAPED)
    if pc.any(to_escape).as_py():
        texts = column.filter(to_escape).to_pylist()
        escaped = [text.translate(_ESCAPES) for text in texts]
        mask = to_escape.fill_null(False)
        column = pc.replace_with_mask(column, mask, pa.array(escaped, column.type))
    return _quoted(column)


def _fractions(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    whole = pc.match_substring_regex(texts, "^-?[0-9]+$")
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if not pc.all(pc.is_finite(column), min_count=0).as_py():
        for text, json_text in _NO_NUMBERS.items():
            texts = pc.if_else(pc.equal(texts, text), json_text, texts)
    return texts


def _days(column: pa.Array) -> pa.Array:
    odd = _odd_years(column, "D")
    return _quoted(column if odd is None else odd)


def _times(column: pa.Array) -> pa.Array:
    """Formats with microseconds. Each distinct second is formatted once: a stream has many rows per
    second, and calendar computations are slow."""
    as_us = column.cast(pa.timestamp("us", tz="UTC"))
    seconds = pc.floor_temporal(as_us, unit="second")
    micros = pc.subtract(as_us.cast(pa.int64()), seconds.cast(pa.int64()))
    each = seconds.cast(pa.timestamp("s", tz="UTC")).dictionary_encode()
    of_each = _odd_years(each.dictionary, "s")
    if of_each is None:
        of_each = pc.strftime(each.dictionary, format="%Y-%m-%dT%H:%M:%S")
    behind = pc.utf8_lpad(micros.cast(pa.string()), 6, "0")
    end = '"' if column.type.tz is None else 'Z"'
    return pc.binary_join_element_wise('"', of_each.take(each.indices), ".", behind, end, "")


def _odd_years(column: pa.Array, unit: str) -> pa.Array | None:
    """Texts of days or seconds, as Spark writes them, if a year is not in 0 to 9999; else None.
    Arrow writes no sign there, and beyond 32767 no year."""
    numbers = column.cast(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64())
    (least, most), (first, last) = pc.min_max(numbers).as_py().values(), _FOUR_DIGITS[unit]
    if least is None or first <= least <= most <= last:
        return None
    moments = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(f"datetime64[{unit}]")
    texts = pa.array(map(with_sign, np.datetime_as_string(moments).tolist()), pa.string())
    return pc.if_else(column.is_valid(), texts, None)
