"""How Debezium writes values of a column in JSON, by the declared type of the column.

Some encodings are known only from the message's schema: the unit of a time that is an integer, and
what a text stands for in a decimal or binary column. Without a schema such values are refused,
because a wrong guess would be a wrong value.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from dagster_jet.core.ddl import split_type
from dagster_jet.errors import ConfigurationError

Field = Mapping[str, Any]
"""Schema of a column, as Kafka's JSON converter writes it."""
Reads = Callable[[Any, "Field | None"], Any]
"""From a value that is not null and its schema to what Spark's JSON parser reads. Raises
ValueError, ArithmeticError, LookupError or TypeError for a value of another kind."""

_UNAVAILABLE = "__debezium_unavailable_value"
_UNAVAILABLES = (
    _UNAVAILABLE,
    base64.b64encode(_UNAVAILABLE.encode()).decode(),
    [_UNAVAILABLE],
)
_DATES = (None, "io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_MICROSECONDS = {
    "io.debezium.time.Timestamp": Decimal(1000),
    "org.apache.kafka.connect.data.Timestamp": Decimal(1000),
    "io.debezium.time.MicroTimestamp": Decimal(1),
    "io.debezium.time.NanoTimestamp": Decimal("0.001"),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXACT = Context(prec=100, traps=[Inexact, InvalidOperation])
_IS_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_ISO_DATE = re.compile(r"(\d{4}-\d\d-\d\d)Z?")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6}0*)?)?(Z|[+-]\d\d:\d\d)")
_IS_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,\s*(\d+))?\))?")
# A type that may need a conversion: as a whole, or inside of another.
_IS_OTHER = re.compile(
    r"(?:^|[<,:]\s*)(?:date|time|decimal|dec|numeric|binary|interval|variant)\w*\b(?!\s*:)"
)
_NO_SCHEMA = (
    "which only the message's schema explains: set value.converter.schemas.enable and "
    "key.converter.schemas.enable, or declare the column as {}"
)


def is_unavailable(value: Any) -> bool:
    """Returns whether a value only says that an update has left a large value as it was, as texts,
    bytes and arrays of texts do by default."""
    return value in _UNAVAILABLES


def reads(column: str, ddl: str) -> Reads:
    """Returns what reads the values of a column.

    Raises:
        ConfigurationError: no value of Debezium's is of this type; names the column.
    """
    kind = re.sub(r"\s+not\s+null\b.*|\s+comment\b.*", "", ddl.strip().lower())
    if (match := _IS_DECIMAL.fullmatch(kind)) is not None:
        precision, scale = match.groups()
        return _decimal(int(precision or 10), int(scale or 0))
    simple: dict[str, Reads] = {"date": _date, "timestamp": _timestamp, "binary": _binary}
    if kind in simple:
        return simple[kind]
    if _IS_OTHER.search(kind):
        raise ConfigurationError(
            f"schema: Debezium's values of {column!r} cannot be read as {ddl}.",
            cure="Declare it as Debezium sends it, such as bigint or array<string>, and convert it "
            "with select(). Columns may be of date, timestamp, decimal and binary.",
        )
    return _with_texts(ddl)


def _with_texts(ddl: str) -> Reads:
    """Reads texts, also inside of other types, and everything else as it is."""
    name, inside = split_type(ddl)
    if name == "string":
        return _string
    parts = {n: one for n, each in inside.items() if (one := _with_texts(each)) is not _as_it_is}
    if not parts:
        return _as_it_is
    return {"array": _array, "map": _map, "struct": _struct}[name](parts)


def _array(parts: Mapping[str, Reads]) -> Reads:
    element = _or_null(parts["element"])

    def read(value: Any, field: Field | None) -> Any:
        if not isinstance(value, list):
            return value
        items = (field or {}).get("items")
        return [element(one, items) for one in value]

    return read


def _map(parts: Mapping[str, Reads]) -> Reads:
    item = _or_null(parts.get("value", _as_it_is))  # keys are texts in JSON

    def read(value: Any, field: Field | None) -> Any:
        if not isinstance(value, dict):
            return value
        items = (field or {}).get("values")
        return {name: item(one, items) for name, one in value.items()}

    return read


def _struct(parts: Mapping[str, Reads]) -> Reads:
    known = {name: _or_null(one) for name, one in parts.items()}

    def read(value: Any, field: Field | None) -> Any:
        if not isinstance(value, dict):
            return value
        fields = {one["field"]: one for one in (field or {}).get("fields", ())}
        return {n: known.get(n, _as_it_is)(one, fields.get(n)) for n, one in value.items()}

    return read


def _or_null(reads: Reads) -> Reads:
    return lambda value, field: None if value is None else reads(value, field)


def _as_it_is(value: Any, field: Field | None) -> Any:
    return value


def _date(value: Any, field: Field | None) -> str:
    if isinstance(value, str) and (match := _ISO_DATE.fullmatch(value)):
        return match[1]
    if type(value) is int and _named(field) in _DATES:
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    raise _unreadable(value, field, "date")


def _timestamp(value: Any, field: Field | None) -> str:
    if isinstance(value, str) and _ISO_TIME.fullmatch(value):
        return value
    if type(value) is int and field is None:
        raise ValueError(f"{value} is a time {_NO_SCHEMA.format('bigint')}")
    unit = _MICROSECONDS.get(_named(field))
    if type(value) is not int or unit is None:
        raise _unreadable(value, field, "timestamp")
    micros = (value * unit).to_integral_exact(context=_EXACT)
    return (_EPOCH + timedelta(microseconds=int(micros))).isoformat()


def _decimal(precision: int, scale: int) -> Reads:
    kind = f"decimal({precision},{scale})"

    def read(value: Any, field: Field | None) -> str:
        number = _number(value, field)
        if number is None and isinstance(value, str):
            if field is None:
                raise ValueError(f"{value!r:.60} is a number {_NO_SCHEMA.format('string')}")
            if _type(field) == "string" and _IS_NUMBER.fullmatch(value):
                number = Decimal(value)
        if type(value) in (int, Decimal):
            number = Decimal(value)
        if number is None:
            raise _unreadable(value, field, kind)
        if number.copy_abs() >= Decimal(10) ** (precision - scale):
            raise ValueError(f"{number} is too large for {kind}")
        try:
            return f"{number.quantize(Decimal(1).scaleb(-scale), context=_EXACT):f}"
        except Inexact:
            raise ValueError(f"{number} has too many digits for {kind}") from None

    return read


def _binary(value: Any, field: Field | None) -> str:
    if isinstance(value, str) and field is None:
        raise ValueError(f"{value!r:.60} are bytes {_NO_SCHEMA.format('string')}")
    if not isinstance(value, str) or _type(field) != "bytes" or _named(field):
        raise _unreadable(value, field, "binary")
    base64.b64decode(value, validate=True)
    return value


def _string(value: Any, field: Field | None) -> Any:
    number = _number(value, field)
    if number is not None:
        return f"{number:f}"
    return str(value) if isinstance(value, Decimal) else value


def _number(value: Any, field: Field | None) -> Decimal | None:
    """Returns a decimal of bytes and a scale; None if the value is something else."""
    if isinstance(value, dict) and value.keys() == {"scale", "value"}:  # VariableScaleDecimal
        return _scaled(value["value"], value["scale"])
    if isinstance(value, str) and field is not None and _named(field) == _DECIMAL:
        return _scaled(value, int(field["parameters"]["scale"]))
    return None


def _scaled(text: str, scale: int) -> Decimal:
    unscaled = int.from_bytes(base64.b64decode(text, validate=True), "big", signed=True)
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def _named(field: Field | None) -> Any:
    return (field or {}).get("name")


def _type(field: Field | None) -> Any:
    return (field or {}).get("type")


def _unreadable(value: Any, field: Field | None, kind: str) -> ValueError:
    sent = "" if field is None else f", sent as {_named(field) or _type(field)},"
    return ValueError(f"{value!r:.60}{sent} cannot be read as {kind}")
