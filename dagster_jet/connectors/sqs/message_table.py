"""Messages as an Arrow table: value, position, and metadata if requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dagster_jet.connectors.message_reader import POSITION_COLUMN
from dagster_jet.connectors.values.json_objects import VALUE_COLUMN

METADATA_DDL = (
    "_message_id string, _sent timestamp, _receive_count int, _group string, "
    "_sequence_number string, _attributes map<string,string>"
)
SYSTEM_ATTRIBUTES = ("SentTimestamp", "ApproximateReceiveCount", "MessageGroupId", "SequenceNumber")


@dataclass(frozen=True)
class Message:
    """One delivery of a message."""

    message_id: str
    """Id that recognises the message when it is delivered again."""
    handle: str
    """SQS's receipt handle of this delivery."""
    body: bytes
    sent_ms: int | None
    receive_count: int | None
    group: str | None
    sequence_number: str | None
    attributes: dict[str, str]


def message_of(received: Mapping[str, Any], message_id: str) -> Message:
    """Converts the client library's message; `message_id` is its id."""
    system = received.get("Attributes", {})
    return Message(
        message_id,
        received["ReceiptHandle"],
        received["Body"].encode(),
        _number(system.get("SentTimestamp")),
        _number(system.get("ApproximateReceiveCount")),
        system.get("MessageGroupId"),
        system.get("SequenceNumber"),
        {name: _text(value) for name, value in received.get("MessageAttributes", {}).items()},
    )


def table_of(messages: Sequence[Message], queue: str, *, with_metadata: bool) -> pa.Table:
    columns: dict[str, pa.Array] = {
        VALUE_COLUMN: pa.array([m.body for m in messages], pa.binary()),
        POSITION_COLUMN: pa.array([f"{queue}/{m.message_id}" for m in messages], pa.string()),
    }
    if with_metadata:
        times = [None if m.sent_ms is None else m.sent_ms * 1_000 for m in messages]
        columns |= {
            "_message_id": pa.array([m.message_id for m in messages], pa.string()),
            "_sent": pa.array(times, pa.timestamp("us", "UTC")),
            "_receive_count": pa.array([m.receive_count for m in messages], pa.int32()),
            "_group": pa.array([m.group for m in messages], pa.string()),
            "_sequence_number": pa.array([m.sequence_number for m in messages], pa.string()),
            "_attributes": pa.array(
                [list(m.attributes.items()) for m in messages], pa.map_(pa.string(), pa.string())
            ),
        }
    return pa.table(columns)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _text(value: Mapping[str, Any]) -> str:
    """Converts text, number and bytes attributes to text."""
    if "StringValue" in value:
        return str(value["StringValue"])
    return bytes(value.get("BinaryValue", b"")).decode(errors="replace")
