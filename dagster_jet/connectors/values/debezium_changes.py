"""Debezium's change messages, converted to JSON objects of change rows by the task that reads them.

`JsonObjects` then parses them: columns by name, bad rows, dead letters. What a column's value means
is what Debezium documents for the type that the message's schema names (`debezium_values`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Any

from dagster_jet.connectors.change_columns import (
    IN_LOG,
    IN_TOPIC,
    OLD,
    OP,
    ORDERED_BY,
    UNCHANGED,
)
from dagster_jet.connectors.values.debezium_values import Field, Reads, is_unavailable, reads
from dagster_jet.core.ddl import quoted_name, split_ddl
from dagster_jet.errors import ConfigurationError

Fields = Mapping[str, Field]
"""Schemas of a row's columns; empty if the message has no schema."""
_OPS = {"c": "insert", "r": "insert", "u": "update", "d": "delete", "t": "truncate"}
_RESERVED = (OP, *IN_LOG, *IN_TOPIC, ORDERED_BY, OLD, UNCHANGED)
_DELETION = b'{"op": "d"}'
_NO_ORDER = "{}, and the topic has several partitions, which have no common order"
_decode = json.JSONDecoder(parse_float=Decimal).decode
_encode = json.JSONEncoder(default=float).encode
_WRAPPER = {"schema", "payload"}
_BEHIND_SCHEMA = ',"payload":'
_SCHEMAS = 16
"""Texts of schemas that a worker keeps parsed: keys and values of some tables' versions."""


@dataclass(frozen=True)
class DebeziumChanges:
    """Converts messages of one table.

    Attributes:
        schema: the table's columns as DDL.
        tombstones_delete: a message without a value deletes the row of its key.
    """

    schema: str
    tombstones_delete: bool = False

    def __post_init__(self) -> None:
        """Raises `ConfigurationError`."""
        for name in self._columns:
            if name.lower() in _RESERVED:
                raise ConfigurationError(
                    f"schema: {name!r} is a column that every change has.",
                    cure="Leave the table's column out, or let Debezium rename it.",
                )

    @cached_property
    def _columns(self) -> Mapping[str, Reads]:
        return {name: reads(name, ddl) for name, ddl in split_ddl(self.schema)}

    @property
    def ddl(self) -> str:
        """Columns of the objects."""
        old = ", ".join(f"{quoted_name(name)}: {ddl}" for name, ddl in split_ddl(self.schema))
        lists = ", ".join(f"{name} array<string>" for name in (UNCHANGED, ORDERED_BY))
        return f"{OP} string, {self.schema}, {OLD} struct<{old}>, {lists}"

    def texts(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], *, alone: bool
    ) -> list[bytes | None]:
        """Converts messages to JSON objects. One that is no change becomes its error and its value,
        which no JSON parser accepts.

        Args:
            alone: the topic has no other partition, so that all its changes have one order.
        """
        return [
            None
            if value is None and not self.tombstones_delete
            else self._text(value, key, alone=alone)
            for value, key in zip(values, keys, strict=True)
        ]

    def _text(self, value: bytes | None, key: bytes | None, *, alone: bool) -> bytes:
        try:
            return _encode(self._row(value, key, alone=alone)).encode()
        except Exception as error:  # noqa: BLE001 - a message may hold anything
            shown = (value or b"").decode(errors="replace")
            reason = str(error) or type(error).__name__
            return f"not a change from Debezium ({reason}): {shown}".encode()

    def _row(self, value: bytes | None, key: bytes | None, *, alone: bool) -> dict[str, Any]:
        identity, key_fields = (None, {}) if key is None else _message(key, "its key")
        content = _DELETION if value is None else value
        change, fields = _message(content, "its value", "after")
        op = _OPS.get(change.get("op", ""))
        if op is None:
            raise ValueError(f"its op is {change.get('op')!r}, not one of {', '.join(_OPS)}")
        if op == "truncate" and not alone:
            raise ValueError(_NO_ORDER.format("it truncates the table"))
        if not (identity or alone):
            raise ValueError(_NO_ORDER.format("it has no key"))
        ordered_by = [] if alone else sorted(identity or ())
        row: dict[str, Any] = {OP: op, UNCHANGED: [], ORDERED_BY: ordered_by}
        if op == "truncate":
            return row
        before, after = change.get("before"), change.get("after")
        if op != "insert" and before is not None:
            row[OLD] = self._values(before, fields, [])
        elif op != "insert" and identity is not None:
            row[OLD] = self._values(identity, key_fields, [])
        if op == "delete":
            return {**row, **row.get(OLD, {})}
        if not isinstance(after, dict) or self._columns.keys().isdisjoint(after):
            raise ValueError("its after has none of the columns of the schema")
        row.update(self._values(after, fields, row[UNCHANGED]))
        if op == "insert" and row[UNCHANGED]:
            raise ValueError(
                f"it does not have the value of {row[UNCHANGED][0]}, which an update of the row's "
                "key has left as it was: let the table have replica identity full"
            )
        return row

    def _values(
        self, row: Mapping[str, Any], fields: Fields, unchanged: list[str]
    ) -> dict[str, Any]:
        """Returns the columns. Those without their value are null, and added to `unchanged`."""
        found = {}
        for name, read in self._columns.items():
            value = row.get(name)
            if is_unavailable(value):
                value = None
                unchanged.append(name)
            try:
                found[name] = None if value is None else read(value, fields.get(name))
            except ValueError as error:
                raise ValueError(f"the column {name}: {error}") from None
            except (ArithmeticError, LookupError, TypeError):
                raise ValueError(f"the column {name}: {value!r:.60} cannot be read") from None
        return found


def _message(text: bytes, what: str, row: str | None = None) -> tuple[dict[str, Any], Fields]:
    """Returns the content of a JSON message and the schemas of its columns.

    Args:
        row: the field of the content that has the columns; None: it has them itself.
    """
    content = _parsed(text.decode())
    schema: Any = None
    if isinstance(content, dict) and content.keys() == _WRAPPER:
        schema, content = content["schema"], content["payload"]
    if not isinstance(content, dict):
        raise ValueError(f"{what} is not a JSON object")
    fields = _fields(schema)
    return content, fields if row is None else _fields(fields.get(row))


def _parsed(text: str) -> Any:
    """Parses a message like `_decode`. Its schema, which each message repeats, is parsed once."""
    head, is_wrapped, payload = text.partition(_BEHIND_SCHEMA)
    if is_wrapped:
        try:
            return {**_parsed_head(head), **_decode(f'{{"payload":{payload}')}
        except ValueError:
            pass  # not JSON, or "payload" is a field of an inner object
    return _decode(text)


@lru_cache(_SCHEMAS)
def _parsed_head(head: str) -> dict[str, Any]:
    """Parses the fields before the payload. The result is shared: nobody changes it."""
    fields: dict[str, Any] = _decode(f"{head}}}")
    return fields


def _fields(schema: Field | None) -> Fields:
    return {one["field"]: one for one in (schema or {}).get("fields", ())}
