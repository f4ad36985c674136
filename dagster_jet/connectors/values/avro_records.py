"""Avro values, converted to JSON objects by the task that reads them.

`JsonObjects` then parses them: columns by name, bad rows, dead letters. In the JSON, times are ISO
strings, decimals are strings and bytes are base64; Spark's parser converts them to the schema. It
would take other fields for something else, so these are refused (`avro_columns`).
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any
from uuid import UUID

from dagster_jet.connectors.values.avro_columns import CURE, misfit
from dagster_jet.connectors.values.schema_registry import SchemaRegistry, check_installed
from dagster_jet.core.library import library
from dagster_jet.core.secret import Url, holds_password, named, shown
from dagster_jet.errors import ConfigurationError, JetError

_HEADER = struct.Struct(">bI")


@dataclass(frozen=True)
class AvroRecords:
    """Decodes Avro records by one schema, or each by the registry's schema of its number."""

    schema: str | None
    """Writer's schema, as JSON."""
    registry: SchemaRegistry | None
    columns: str = ""
    """DDL of the columns into which fields are read."""

    def __post_init__(self) -> None:
        _library()
        if (self.schema is None) == (self.registry is None):
            raise ConfigurationError(
                "avro: either avro_schema or registry is needed, and not both.",
                cure="avro_schema='{...}' if all messages are of one schema.",
            )
        if self.registry is not None:
            check_installed()
        if self.schema is not None:
            try:
                kind = _parsed(self.schema).get("type")
            except Exception as error:  # noqa: BLE001 - the library raises many types
                raise ConfigurationError(
                    f"avro_schema: this is not a valid Avro schema: {error}."
                ) from None
            if kind != "record":
                raise ConfigurationError(f"avro_schema: it is of a {kind}, not of a record.")
            if why := misfit(_parsed(self.schema), self.columns):
                raise ConfigurationError(f"avro_schema: {why}.", cure=CURE)

    def texts(self, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Converts records to JSON objects. A value that is not a record, or has a field that does
        not fit its column, becomes its error and its bytes in hexadecimal, which no JSON parser
        accepts."""
        return [None if value is None else self._text(value) for value in values]

    def _text(self, value: bytes) -> bytes:
        try:
            schema, content = self._schema_of(value)
            stream = io.BytesIO(content)
            record = _library().schemaless_reader(stream, schema, None)
            if stream.read(1):
                raise ValueError("the record is followed by more bytes")
            return json.dumps(record, default=_plain).encode()
        except JetError:
            raise
        except Exception as error:  # noqa: BLE001 - a message may hold anything
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return f"not an Avro record ({reason}): {value.hex()}".encode()

    def _schema_of(self, value: bytes) -> tuple[Any, bytes]:
        if self.registry is None:
            assert self.schema is not None
            return _parsed(self.schema), value
        magic, number = _HEADER.unpack_from(value)
        if magic != 0:
            raise ValueError("it does not begin with the number of a schema")
        found = self.registry.schema(number)
        if found is None:
            raise ValueError(f"the registry has no schema {number}")
        if found.schema_type != "AVRO" or found.references:
            raise ValueError(f"the schema {number} is not Avro, or refers to others")
        return _fitting(found.schema_str, self.columns), value[_HEADER.size :]


def avro_of(schema: str | None, registry: Url | None, columns: str | None = None) -> AvroRecords:
    """Parses a user's `avro_schema=` and `registry=`.

    Args:
        columns: DDL of the columns into which fields are read.

    Raises:
        ConfigurationError: one of them is not valid, or a field of the schema cannot be read as its
            column.
    """
    if registry is not None:
        registry = named(registry)
        if holds_password(registry):
            raise ConfigurationError(
                f"registry: {shown(registry)} contains its password in plain text, and everybody "
                "who sees the code can read it.",
                cure='Name a variable that holds it: Secret(env="...").',
            )
        if isinstance(registry, str) and not registry.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"registry: {registry!r} is not a URL of HTTP.",
                cure='Write it like "http://registry:8081".',
            )
    asked = None if registry is None else SchemaRegistry(registry)
    return AvroRecords(schema, asked, columns or "")


@cache
def _parsed(schema: str) -> Any:
    fastavro = _library()
    # It gives integers, which Spark's parser would take for seconds.
    readers = fastavro.read.LOGICAL_READERS
    readers.setdefault("long-timestamp-nanos", _of_nanoseconds_utc)
    readers.setdefault("long-local-timestamp-nanos", _of_nanoseconds)
    return fastavro.parse_schema(json.loads(schema))


@cache
def _fitting(schema: str, columns: str) -> Any:
    parsed = _parsed(schema)
    if why := misfit(parsed, columns):
        raise ValueError(f"{why}. {CURE}")
    return parsed


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _of_nanoseconds(value: int, *_: Any) -> str:
    return (datetime(1970, 1, 1) + timedelta(microseconds=value // 1000)).isoformat()


def _of_nanoseconds_utc(value: int, *_: Any) -> str:
    return f"{_of_nanoseconds(value)}+00:00"


def _library() -> Any:
    return library("fastavro", "dagster-jet[avro]", "Avro needs the package fastavro")
