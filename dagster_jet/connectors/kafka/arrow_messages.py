"""Converts rows to messages in a task, where the stage's results are: no pass through the JVM.

The messages are the same as those of `messages.message_columns`, byte for byte, for the columns
that `can_convert` accepts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.kafka.messages import COLUMNS, MessageLayout
from dagster_jet.connectors.staging import RowsWriter
from dagster_jet.connectors.values import json_lines
from dagster_jet.connectors.values.last_batch import OfLastBatch

_KEY, _VALUE, _, _PARTITION, _TIMESTAMP, _TOPIC = COLUMNS


def are_messages(schema: pa.Schema) -> bool:
    """Returns whether the rows have been converted."""
    return {_KEY, _VALUE} <= set(schema.names)


def can_convert(schema: pa.Schema, layout: MessageLayout) -> bool:
    """Returns whether rows of these columns can be converted here. False also for what
    `message_columns` refuses: it names the reason."""
    types = {field.name: field.type for field in schema}
    if are_messages(schema) or layout.headers is not None:
        return False
    if not {*layout.key, *layout.apart} <= types.keys():
        return False
    checks = (
        (layout.partition, pa.types.is_signed_integer),
        (layout.timestamp, lambda type: pa.types.is_timestamp(type) and type.tz is not None),
        (layout.tombstone, pa.types.is_boolean),
        (layout.topic, pa.types.is_string),
    )
    if not all(name is None or check(types[name]) for name, check in checks):
        return False
    if layout.format == "raw":
        has_value = _is_binary(types.get("value"))
    else:
        columns = pa.schema(field for field in schema if field.name not in layout.apart)
        has_value = bool(columns.names) and json_lines.can_encode(columns)
    if not has_value:
        return False
    if len(layout.key) == 1:
        return _is_plain_key(types[layout.key[0]])
    return json_lines.can_encode(pa.schema((name, types[name]) for name in layout.key))


def as_messages(rows: pa.RecordBatch, layout: MessageLayout) -> pa.RecordBatch:
    """Returns rows that the JVM has converted as they are, and others converted. `can_convert`
    accepts their columns."""
    return rows if are_messages(rows.schema) else _converted(rows, layout)


@OfLastBatch
def _converted(rows: pa.RecordBatch, layout: MessageLayout) -> pa.RecordBatch:
    found = {_KEY: _key(rows, layout.key), _VALUE: _value(rows, layout)}
    if layout.partition is not None:
        found[_PARTITION] = rows.column(layout.partition).cast(pa.int64())
    if layout.timestamp is not None:
        us = rows.column(layout.timestamp).cast(pa.timestamp("us", "UTC"))
        ms = pc.floor_temporal(us, unit="millisecond").cast(pa.timestamp("ms", "UTC"))
        found[_TIMESTAMP] = ms.cast(pa.int64())
    if layout.topic is not None:
        found[_TOPIC] = rows.column(layout.topic)
    return pa.RecordBatch.from_pydict(found)


@dataclass
class MessagesWriter(RowsWriter):
    """Stages rows as messages."""

    layout: MessageLayout

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(as_messages(batch, self.layout))


def _value(rows: pa.RecordBatch, layout: MessageLayout) -> pa.Array:
    if layout.format == "raw":
        value = rows.column("value").cast(pa.binary())
    else:
        names = [name for name in rows.schema.names if name not in layout.apart]
        value = json_lines.objects(rows.select(names)).cast(pa.binary())
    if layout.tombstone is not None:
        has_none = rows.column(layout.tombstone).fill_null(False)
        value = pc.if_else(has_none, pa.scalar(None, pa.binary()), value)
    return value


def _key(rows: pa.RecordBatch, key: tuple[str, ...]) -> pa.Array:
    if not key:
        return pa.nulls(rows.num_rows, pa.binary())
    if len(key) > 1:
        return json_lines.objects(rows.select(key)).cast(pa.binary())
    column = rows.column(key[0])
    if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type):
        encode = json_lines.values_encoder(column.type)
        assert encode is not None
        return pc.utf8_slice_codeunits(encode(column), 1, -1).cast(pa.binary())  # no quotes
    text = column if _is_binary(column.type) else column.cast(pa.string())
    return text.cast(pa.binary())


def _is_binary(type: pa.DataType | None) -> bool:
    return type is not None and (pa.types.is_string(type) or pa.types.is_binary(type))


def _is_plain_key(type: pa.DataType) -> bool:
    """Whether Spark's text of a single key is known. That of fractions differs from JSON's."""
    is_known = (
        _is_binary,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_date32,
        pa.types.is_timestamp,
    )
    return any(check(type) for check in is_known)
