"""Encodes keys of user maps as unique texts, and computes the same partition as Spark.

The text is JSON, so that every type of key is distinct: ``"a"``, ``1``, ``true``, ``{"b":"AAE="}``
for bytes, ``["a",1]`` for a tuple.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, TypeAlias, cast

from dagster_jet.errors import ConfigurationError
from dagster_jet.store import MapKey, partition_id

Scalar: TypeAlias = "str | int | bytes | bool"
Key: TypeAlias = "Scalar | tuple[Scalar, ...]"
"""Supported types of keys. ``("a",)`` and ``"a"`` are different keys."""

_HASHED = "#"
"""First character of the stored name of an overlong key; no JSON text begins with it."""


def encode_key(key: Key) -> str:
    """Return the unique text of a key.

    Raises:
        ConfigurationError: another type, an empty tuple, or an integer beyond 64 bits.
    """
    return _encoded(key)


def decode_key(text: str) -> Key:
    """Return the key with this text."""
    read = json.loads(text)
    return tuple(map(_decoded, read)) if isinstance(read, list) else _decoded(read)


def partition_of(key: Key, partition_count: int) -> int:
    """Return the key's partition: ``pmod(xxhash64(columns), partition_count)`` in Spark."""
    columns = key if isinstance(key, tuple) else (key,)
    return partition_id(*columns, partition_count=partition_count)


def entry_key(text: str, partition: int, name_bytes_max: int) -> MapKey:
    """Return the storage key of an entry: the key's text, or its hash if the text is too long."""
    encoded = text.encode()
    if len(encoded) > name_bytes_max:
        return MapKey(partition, _HASHED + hashlib.sha256(encoded).hexdigest())
    return MapKey(partition, text)


def _encoded(key: Key) -> str:
    if isinstance(key, tuple):
        if not key:
            raise ConfigurationError(
                "the key is an empty tuple.", cure="A key needs at least one value."
            )
        return _json([_plain(column) for column in key])
    return _json(_plain(key))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ConfigurationError(f"the key {value} does not fit a 64-bit integer.")
        return int(value)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"the key {value!r} is not valid Unicode.", cure="Use bytes."
            ) from None
        return str(value)
    raise ConfigurationError(
        f"a key of type {type(value).__name__} is not supported.",
        cure="Use str, int, bytes, bool, or a tuple of these.",
    )


def _decoded(value: Any) -> Scalar:
    if isinstance(value, dict):
        return base64.b64decode(value["b"])
    return cast("Scalar", value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
