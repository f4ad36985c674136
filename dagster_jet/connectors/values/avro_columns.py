"""Which fields of Avro records fit which columns.

Records pass through JSON, where Spark's parser takes a number for seconds if the column is a
timestamp, and where bytes and texts look alike. Avro knows better what a field is. As for Parquet,
a number without a unit is no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_jet.core.ddl import split_type

_STAMPS = (f"{zone}timestamp-{u}" for zone in ("", "local-") for u in ("millis", "micros", "nanos"))
_TIMES = frozenset(("date", "string", *_STAMPS))
"""Types of fields that a time column reads."""
_BYTES = frozenset(("bytes", "fixed"))
CURE = (
    "Declare the column as the field is (long as bigint, bytes as binary), and convert it with "
    "select(), such as timestamp_millis(at) or cast(raw AS string). A time has a logical type, "
    "such as timestamp-millis, inside of the field's type."
)


def misfit(schema: Any, columns: str) -> str | None:
    """Returns, as a clause, a field that its column would take for something else; None if there is
    none.

    Args:
        schema: of a record, as fastavro has parsed it.
        columns: DDL.
    """
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return _misfit(schema, f"struct<{columns}>", "", named)


def _misfit(schema: Any, type: str, path: str, named: Mapping[str, Any]) -> str | None:
    if isinstance(schema, list):
        found = (_misfit(one, type, path, named) for one in schema)
        return next(filter(None, found), None)
    schema = named.get(schema, {"type": schema}) if isinstance(schema, str) else schema
    kind, (name, inside) = _kind(schema), split_type(type)
    if not _fits(kind, name):
        return f"the field {path} is {kind}, which cannot be read as {name}"
    parts = _parts(kind, schema) if name == {"record": "struct"}.get(kind, kind) else {}
    found = (
        _misfit(parts[part], inner, f"{path}.{part}".lstrip("."), named)
        for part, inner in inside.items()
        if part in parts
    )
    return next(filter(None, found), None)


def _fits(kind: str, column: str) -> bool:
    """Returns whether Spark's parser takes a value for what it is, or refuses it."""
    if kind == "null":
        return True
    if column in ("date", "timestamp", "timestamp_ltz", "timestamp_ntz"):
        return kind in _TIMES
    return (kind in _BYTES) == (column == "binary")


def _parts(kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schemas inside, by the names of `split_type`."""
    if kind == "record":
        return {field["name"]: field["type"] for field in schema["fields"]}
    return {"element": schema.get("items"), "value": schema.get("values")}


def _kind(schema: Mapping[str, Any]) -> str:
    """Returns the logical type, if the library gives values of it; else the type."""
    from fastavro.read import LOGICAL_READERS

    kind, logical = str(schema["type"]), str(schema.get("logicalType"))
    return logical if f"{kind}-{logical}" in LOGICAL_READERS else kind
