"""Plain Python values as bytes, in MessagePack. Reading them never executes code.

Plain are None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, datetime, date,
time, timedelta, Decimal, UUID, `PartitionKey` and `BroadcastKey`; not their subclasses. They are
read back equal and with the same type, in any nesting. Other values are refused when they are
written, because they would be read back differently or not at all.

A type that MessagePack lacks is an extension (`_Code`), or a list that begins with an empty
extension. A value that is a tuple is a list after a marker byte. Elements of a set are written in a
fixed order: it has the same bytes in any process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack

from dagster_jet.dag.items import BroadcastKey, PartitionKey


class NotPlainError(TypeError):
    """The value is not plain; the message says which part and where."""


def to_bytes(value: Any) -> bytes:
    """Returns a plain value as bytes.

    Raises:
        NotPlainError: it is not plain, refers to itself, or is nested hundreds of levels deep.
    """
    try:
        # A top-level tuple is common enough for an encoding of its own.
        packed = _WHOLE_TUPLE + _pack(list(value)) if type(value) is tuple else _pack(value)
        # MessagePack packs a bytearray like bytes: if the mark of bytes occurs, look for one.
        if _BYTES_MARK.search(packed) is None or not _holds_buffer(value):
            return packed
        reason = ""
    except Exception as error:  # noqa: BLE001 - it says at most "TypeError", without a place
        reason = f"{type(error).__name__}: {error}"
    raise NotPlainError(next(_foreign(value, "", 0), reason))


def from_bytes(data: bytes | memoryview) -> Any:
    """Reads the result of `to_bytes`; raises some Exception for other bytes."""
    if data[:1] == _WHOLE_TUPLE:
        return tuple(_unpacked(data[1:]))
    return _unpacked(data)


def _unpacked(data: bytes | memoryview) -> Any:
    return msgpack.unpackb(
        data,
        ext_hook=_from_extension,
        list_hook=_from_list,
        strict_map_key=False,
        unicode_errors="surrogatepass",
    )


class _Code(IntEnum):
    """Code of an extension type. Part of the format: a number is never used for another type."""

    TUPLE = 1
    """Empty: begins a list of the elements."""
    SET = 2
    """Same if the elements have a total order; else a list of their bytes, in order."""
    FROZENSET = 3
    """Like SET."""
    INT = 4
    """Integer of more than 64 bits: signed, big endian."""
    DATETIME = 5
    """[ISO 8601 without a zone, fold, zone]. The zone: None, the name of a `ZoneInfo`, or [seconds,
    microseconds, name or None] of a fixed offset."""
    DATE = 6
    TIME = 7
    """Like DATETIME."""
    TIMEDELTA = 8
    """[days, seconds, microseconds]"""
    DECIMAL = 9
    UUID = 10
    BROADCAST_KEY = 11
    PARTITION_KEY = 12
    """[partition, name]"""


_WHOLE_TUPLE = b"\xc1"
"""Byte with which MessagePack never begins; a list follows, which is read as a tuple."""
_BYTES_MARK = re.compile(rb"[\xc4-\xc6]")
_SCALARS = frozenset(
    (type(None), bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID)
)
_ORDERED = frozenset((int, str, bytes, date))
"""Types whose values have a total order."""
_ZONES = (type(None), timezone, ZoneInfo)
_DEPTH_MAX = 500

# --- writing --------------------------------------------------------------------------------


def _pack(value: Any) -> bytes:
    try:
        return _packed(value, None)
    except UnicodeEncodeError:  # lone surrogates; allowing them always would slow down all text
        return _packed(value, "surrogatepass")


def _packed(value: Any, unicode_errors: str | None) -> bytes:
    # One packer per call: nested calls and other threads must not share one. Its buffer grows.
    packer = msgpack.Packer(
        default=_encoded, strict_types=True, unicode_errors=unicode_errors, buf_size=512
    )
    packed: bytes = packer.pack(value)
    return packed


def _encoded(value: Any) -> Any:
    return _ENCODERS[type(value)](value)


def _set(begins: msgpack.ExtType, value: set[Any] | frozenset[Any]) -> Any:
    kinds = set(map(type, value))
    if len(kinds) < 2 and kinds <= _ORDERED:
        return [begins, *sorted(value)]
    return msgpack.ExtType(begins.code, _pack(sorted(map(_pack, value))))


def _zoned(value: datetime | time) -> bytes:
    zone = value.tzinfo
    if not _is_plain_zone(zone):
        raise TypeError
    saved_zone: Any = zone.key if isinstance(zone, ZoneInfo) else None
    if isinstance(zone, timezone):
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        saved_zone = [offset.days * 86_400 + offset.seconds, offset.microseconds, *(name or [None])]
    return _pack([value.replace(tzinfo=None, fold=0).isoformat(), value.fold, saved_zone])


def _is_plain_zone(zone: tzinfo | None) -> bool:
    if isinstance(zone, ZoneInfo) and zone.key is None:
        return False  # made by `from_file`: only its rules are known, not its name
    return type(zone) in _ZONES


_TUPLE, _SET, _FROZENSET = (
    msgpack.ExtType(code, b"") for code in (_Code.TUPLE, _Code.SET, _Code.FROZENSET)
)


def _integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    tuple: lambda value: [_TUPLE, *value],
    set: lambda value: _set(_SET, value),
    frozenset: lambda value: _set(_FROZENSET, value),
    int: lambda value: msgpack.ExtType(_Code.INT, _integer(value)),
    datetime: lambda value: msgpack.ExtType(_Code.DATETIME, _zoned(value)),
    date: lambda value: msgpack.ExtType(_Code.DATE, value.isoformat().encode()),
    time: lambda value: msgpack.ExtType(_Code.TIME, _zoned(value)),
    timedelta: lambda value: msgpack.ExtType(
        _Code.TIMEDELTA, _pack([value.days, value.seconds, value.microseconds])
    ),
    Decimal: lambda value: msgpack.ExtType(_Code.DECIMAL, str(value).encode()),
    UUID: lambda value: msgpack.ExtType(_Code.UUID, value.bytes),
    BroadcastKey: lambda value: msgpack.ExtType(_Code.BROADCAST_KEY, _pack(value.key)),
    PartitionKey: lambda value: msgpack.ExtType(
        _Code.PARTITION_KEY, _pack([value.partition, value.name])
    ),
}

# --- reading --------------------------------------------------------------------------------


class _Beginning:
    """Marks, while a list is read, that it is another collection."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[list[Any]], Any]) -> None:
        self.make = make


_OF_TUPLE, _OF_SET, _OF_FROZENSET = _Beginning(tuple), _Beginning(set), _Beginning(frozenset)


def _from_list(elements: list[Any]) -> Any:
    if elements and type(elements[0]) is _Beginning:
        return elements.pop(0).make(elements)
    return elements


def _from_extension(code: int, data: bytes) -> Any:
    return _DECODERS[code](data)


def _unzoned(data: bytes) -> tuple[str, int, timezone | ZoneInfo | None]:
    text, fold, saved_zone = from_bytes(data)
    if not isinstance(saved_zone, list):
        return text, fold, None if saved_zone is None else ZoneInfo(saved_zone)
    seconds, microseconds, name = saved_zone
    if not seconds and not microseconds and name is None:
        return text, fold, timezone.utc
    offset = timedelta(seconds=seconds, microseconds=microseconds)
    return text, fold, timezone(offset) if name is None else timezone(offset, name)


def _datetime(data: bytes) -> datetime:
    text, fold, zone = _unzoned(data)
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _time(data: bytes) -> time:
    text, fold, zone = _unzoned(data)
    return time.fromisoformat(text).replace(tzinfo=zone, fold=fold)


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    _Code.TUPLE: lambda _: _OF_TUPLE,
    _Code.SET: lambda data: set(map(from_bytes, from_bytes(data))) if data else _OF_SET,
    _Code.FROZENSET: lambda data: (
        frozenset(map(from_bytes, from_bytes(data))) if data else _OF_FROZENSET
    ),
    _Code.INT: lambda data: int.from_bytes(data, "big", signed=True),
    _Code.DATETIME: _datetime,
    _Code.DATE: lambda data: date.fromisoformat(data.decode()),
    _Code.TIME: _time,
    _Code.TIMEDELTA: lambda data: timedelta(*from_bytes(data)),
    _Code.DECIMAL: lambda data: Decimal(data.decode()),
    _Code.UUID: lambda data: UUID(bytes=data),
    _Code.BROADCAST_KEY: lambda data: BroadcastKey(from_bytes(data)),
    _Code.PARTITION_KEY: lambda data: PartitionKey(*from_bytes(data)),
}

# --- what is not plain ----------------------------------------------------------------------


def _holds_buffer(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return False
    if kind is dict:
        return _holds_buffer(list(value)) or _holds_buffer(list(value.values()))
    if kind in (list, tuple, set, frozenset):
        return not _SCALARS.issuperset(map(type, value)) and any(map(_holds_buffer, value))
    return kind in (bytearray, memoryview)


def _foreign(value: Any, path: str, depth: int) -> Iterator[str]:
    """Yields the parts of a value that are not plain, with their place."""
    kind, where = type(value), f"value{path}"
    if depth > _DEPTH_MAX:
        yield f"{where[:60]}... is nested more than {_DEPTH_MAX} levels deep, or refers to itself"
    elif kind is dict:
        for key, element in value.items():
            yield from _foreign(key, f"{path}, key {key!r}", depth + 1)
            yield from _foreign(element, f"{path}[{key!r}]", depth + 1)
    elif kind in (list, tuple):
        for place, element in enumerate(value):
            yield from _foreign(element, f"{path}[{place}]", depth + 1)
    elif kind in (set, frozenset):
        for element in value:
            yield from _foreign(element, f"{path}, element {element!r}", depth + 1)
    elif kind is BroadcastKey:
        yield from _foreign(value.key, f"{path}.key", depth + 1)
    elif kind is PartitionKey:
        yield from _foreign(value.name, f"{path}.name", depth + 1)
    elif kind in (datetime, time) and not _is_plain_zone(value.tzinfo):
        nameless = " without a key" if type(value.tzinfo) is ZoneInfo else ""
        yield f"{where} is a {kind.__name__} with a {_name_of(value.tzinfo)}{nameless}"
    elif kind not in _SCALARS:
        yield f"{where} is a {_name_of(value)}"


def _name_of(value: Any) -> str:
    kind = type(value)
    own = kind.__qualname__
    return own if kind.__module__ == "builtins" else f"{kind.__module__}.{own}"
