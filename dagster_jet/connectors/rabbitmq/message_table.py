"""Messages as an Arrow table: value, position, and metadata if requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.message_reader import POSITION_COLUMN
from dagster_jet.connectors.values.json_objects import VALUE_COLUMN

_YEAR_10000 = 253_402_300_800
"""Seconds since 1970. A later time is in another unit than seconds, as AMQP asks for."""
METADATA_DDL = (
    "_message_id string, _exchange string, _routing_key string, _redelivered boolean, "
    "_timestamp timestamp, _headers map<string,string>"
)


@dataclass(frozen=True)
class Message:
    """A message that was not read before."""

    message_id: str
    body: bytes
    handle: str
    exchange: str
    routing_key: str
    is_redelivered: bool
    timestamp: int | None
    """Seconds since 1970, as set by the publisher."""
    headers: dict[str, str | None] | None


def table_of(messages: Sequence[Message], queue: str, *, with_metadata: bool) -> pa.Table:
    columns: dict[str, pa.Array] = {
        VALUE_COLUMN: pa.array([m.body for m in messages], pa.binary()),
        POSITION_COLUMN: pa.array([f"{queue}/{m.message_id}" for m in messages], pa.string()),
    }
    if with_metadata:
        times = [
            None if m.timestamp is None or m.timestamp >= _YEAR_10000 else m.timestamp * 1_000_000
            for m in messages
        ]
        columns |= {
            "_message_id": pa.array([m.message_id for m in messages], pa.string()),
            "_exchange": pa.array([m.exchange for m in messages], pa.string()),
            "_routing_key": pa.array([m.routing_key for m in messages], pa.string()),
            "_redelivered": pa.array([m.is_redelivered for m in messages], pa.bool_()),
            "_timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "_headers": pa.array(
                [None if m.headers is None else list(m.headers.items()) for m in messages],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    return pa.table(columns)


def seconds_of(timestamp: Any) -> int | None:
    """Seconds since 1970 from pika's value: a number, or a naive `datetime` in UTC."""
    if isinstance(timestamp, datetime):
        return int((timestamp - datetime(1970, 1, 1)).total_seconds())
    return timestamp if isinstance(timestamp, int) else None


def texts_of(headers: Any) -> dict[str, str | None] | None:
    """Converts header values of any AMQP type to text; None if there are no headers."""
    if not headers:
        return None
    return {str(name): None if value is None else _text(value) for name, value in headers.items()}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
