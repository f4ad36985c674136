"""Encodes values of user maps. Pickle only on request: reading a pickle runs code in it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dagster_jet.errors import ConfigurationError


def encode_value(format: str, value: Any) -> bytes:
    """Return the bytes of a value.

    Raises:
        ConfigurationError: the value is None or does not fit the format.
    """
    if value is None:
        raise ConfigurationError("None is not a value.", cure="Use delete() to remove a key.")
    try:
        return _ENCODERS[format](value)
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        raise ConfigurationError(
            f"a value of type {type(value).__name__} cannot be kept as {format!r}: {error}.",
            cure=f"Use a value that fits, or a map of another format ({', '.join(FORMATS)}).",
        ) from None


def decode_value(format: str, data: bytes) -> Any:
    """Return the value with these bytes."""
    return _DECODERS[format](data)


def _to_json(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def _to_arrow(value: Any) -> bytes:
    if not isinstance(value, pa.Table | pa.RecordBatch):
        raise TypeError("expected a pyarrow.Table or RecordBatch")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    return bytes(sink.getvalue())


def _from_arrow(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("expected bytes")
    return bytes(value)


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "json": _to_json,
    "arrow": _to_arrow,
    "bytes": _to_bytes,
    "pickle": pickle.dumps,
}
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    "arrow": _from_arrow,
    "bytes": bytes,
    "pickle": pickle.loads,
}
FORMATS = tuple(_ENCODERS)
