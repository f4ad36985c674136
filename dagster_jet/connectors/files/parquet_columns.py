"""Converts columns of Parquet files to the declared schema, by name and without loss.

Writers of Parquet differ in types and spellings (`ID`, `timestamp[ns]`, int64 for every number,
type null for a column without values). Each value is converted exactly, or the file is refused; no
value becomes null or changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc


class UnfitError(ValueError):
    """A column that cannot be converted to its declared type."""


def spelling(name: str, there: Sequence[str]) -> str | None:
    """Returns the column or field that matches `name`, ignoring case if necessary; None if missing.

    Raises:
        UnfitError: several match.
    """
    same = [other for other in there if other == name]
    same = same or [other for other in there if other.lower() == name.lower()]
    if len(same) > 1:
        raise UnfitError(f"{name} may be {' or '.join(same)}")
    return same[0] if same else None


def as_declared(column: pa.Array, type: pa.DataType, name: str) -> pa.Array:
    """Converts a column to the declared type.

    Args:
        type: type returned by Spark's `to_arrow_schema`.
        name: name of the column in messages.

    Raises:
        UnfitError: the types are not compatible, or a value does not fit.
    """
    given = column.type
    if given == type:
        return column
    if pa.types.is_null(given):
        return pa.nulls(len(column), type)
    if pa.types.is_dictionary(given):
        return as_declared(column.dictionary_decode(), type, name)
    if isinstance(given, pa.BaseExtensionType):
        return as_declared(column.storage, type, name)
    if pa.types.is_struct(given) and pa.types.is_struct(type):
        return _struct(column, type, name)
    if pa.types.is_map(given) and pa.types.is_map(type):
        return _map(column, type, name)
    if _is_list(given) and _is_list(type):
        return _list(column, type, name)
    try:
        return _converted(column, type)
    except (pa.ArrowException, UnfitError) as error:
        raise UnfitError(f"{name} is {given}, which is no {type}: {error}") from error


def _struct(column: pa.StructArray, type: pa.StructType, name: str) -> pa.StructArray:
    there, fields = [field.name for field in column.type], []
    for field in type:
        own = spelling(field.name, there)
        if own is None:
            fields.append(pa.nulls(len(column), field.type))
        else:
            values = pc.struct_field(column, [there.index(own)])  # null where the struct is
            fields.append(as_declared(values, field.type, f"{name}.{own}"))
    return pa.StructArray.from_arrays(fields, fields=list(type), mask=column.is_null())


def _list(column: pa.Array, type: pa.ListType, name: str) -> pa.ListArray:
    column = _from_its_beginning(column.cast(pa.list_(column.type.value_type)))
    values = as_declared(column.values, type.value_type, f"{name}[]")
    return pa.ListArray.from_arrays(column.offsets, values, type, mask=column.is_null())


def _map(column: pa.MapArray, type: pa.MapType, name: str) -> pa.MapArray:
    column = _from_its_beginning(column)
    keys = as_declared(column.keys, type.key_type, f"{name}.key")
    items = as_declared(column.items, type.item_type, f"{name}.value")
    return pa.MapArray.from_arrays(column.offsets, keys, items, type, mask=column.is_null())


def _from_its_beginning(column: pa.Array) -> pa.Array:
    """Copies a slice: `from_arrays` does not accept offsets of a slice together with nulls."""
    return pa.concat_arrays([column, column.slice(0, 0)]) if column.offset else column


# --- values --------------------------------------------------------------------------------------


def _converted(column: pa.Array, type: pa.DataType) -> pa.Array:
    for is_given, is_wanted, convert in _CONVERSIONS:
        if is_given(column.type) and is_wanted(type):
            return convert(column, type)
    raise UnfitError("they have no values in common")


def _cast(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Casts; Arrow checks that each value fits without truncation."""
    return column.cast(type)


def _as_number(column: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(type) and pa.types.is_integer(column.type):
        # Arrow would only compare the types: the largest integer does not fit decimal(10, 2).
        column = column.cast(pa.decimal128(38, type.scale))
    made = column.cast(type)
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        _check_kept(column, made)
    return made


def _check_kept(given: pa.Array, made: pa.Array) -> None:
    """Arrow does not check these casts: 1e300 would be infinite, 1.239 become 1.24, and 12:00 lost.

    Raises:
        UnfitError: a value has changed.
    """
    back = made.cast(given.type, safe=False)
    kept = pc.equal(back, given)
    if pa.types.is_floating(given.type):
        kept = pc.or_(kept, pc.and_(pc.is_nan(back), pc.is_nan(given)))
    changed = given.filter(pc.invert(kept).fill_null(False))
    if len(changed):
        shown = changed[:1].cast(pa.string())  # Python lacks years after 9999
        raise UnfitError(f"{shown[0]} would change")


def _as_time(column: pa.Array, type: pa.TimestampType) -> pa.Array:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        # Spark's times have microseconds.
        return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(type)
    return column.cast(type)


def _as_day(column: pa.Array, type: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        # Arrow would take the day of the zone.
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    made = column.cast(type)
    _check_kept(column, made)
    return made


def _time_of_text(column: pa.Array, type: pa.TimestampType) -> pa.Array:
    try:
        return column.cast(pa.timestamp("us", "UTC")).cast(type)
    except pa.ArrowInvalid:  # without a zone: UTC
        return column.cast(pa.timestamp("us")).cast(type)


def _text_first(column: pa.Array, type: pa.DataType) -> pa.Array:
    """Parses strings or bytes as text of a number or time."""
    text = column.cast(pa.string())
    if pa.types.is_timestamp(type):
        return _time_of_text(text, type)
    if pa.types.is_integer(type):  # Arrow would read "0x10" as 16, Spark does not
        hexadecimal = text.filter(pc.match_substring(text, "x", ignore_case=True))
        if len(hexadecimal):
            raise UnfitError(f"{hexadecimal[0]} is no decimal number")
    return text.cast(type)


_Kind: TypeAlias = Callable[[pa.DataType], bool]


def _one_of(*kinds: _Kind) -> _Kind:
    return lambda type: any(is_one(type) for is_one in kinds)


_t = pa.types
_is_list = _one_of(_t.is_list, _t.is_large_list, _t.is_fixed_size_list)
_is_number = _one_of(_t.is_integer, _t.is_floating, _t.is_decimal)
_is_day_or_time = _one_of(_t.is_date, _t.is_timestamp)
_is_shown = _one_of(_is_number, _is_day_or_time, _t.is_boolean)
_is_text = _one_of(
    *(_t.is_string, _t.is_large_string, _t.is_string_view),
    *(_t.is_binary, _t.is_large_binary, _t.is_binary_view, _t.is_fixed_size_binary),
)

_CONVERSIONS: Sequence[tuple[_Kind, _Kind, Callable[[pa.Array, pa.DataType], pa.Array]]] = (
    (_is_number, _is_number, _as_number),
    (_is_day_or_time, _t.is_timestamp, _as_time),
    (_is_day_or_time, _t.is_date, _as_day),
    (_is_text, _is_text, _cast),
    (_is_text, _is_shown, _text_first),
    (_is_shown, _t.is_string, _cast),
    (_t.is_time, _t.is_time, _cast),
    (_t.is_duration, _t.is_duration, _cast),
)
"""Conversions as (given type, declared type, function)."""
