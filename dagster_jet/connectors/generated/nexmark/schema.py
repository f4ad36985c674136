"""Columns of an event, for readers and writers.

One row per event, as in the suite: two of its three structs are null. The event's `number` is an
addition, which distinguishes events of the same millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

EVENT = {"number": "bigint", "event_type": "int", "date_time": "timestamp"}
VIEWS = {
    "person": {
        "id": "bigint",
        "name": "string",
        "email_address": "string",
        "credit_card": "string",
        "city": "string",
        "state": "string",
        "extra": "string",
    },
    "auction": {
        "id": "bigint",
        "item_name": "string",
        "description": "string",
        "initial_bid": "bigint",
        "reserve": "bigint",
        "expires": "timestamp",
        "seller": "bigint",
        "category": "bigint",
        "extra": "string",
    },
    "bid": {
        "auction": "bigint",
        "bidder": "bigint",
        "price": "bigint",
        "channel": "string",
        "url": "string",
        "extra": "string",
    },
}
"""In order of `event_type`: 0, 1, 2."""


def spark_ddl() -> str:
    def columns(types: dict[str, str], separator: str) -> str:
        return ", ".join(f"{name}{separator}{type_}" for name, type_ in types.items())

    structs = [f"{view} struct<{columns(types, ': ')}>" for view, types in VIEWS.items()]
    return ", ".join([columns(EVENT, " "), *structs])


def duckdb_types() -> dict[str, str]:
    def type_of(name: str) -> str:
        return {"string": "VARCHAR", "timestamp": "TIMESTAMPTZ"}.get(name, name.upper())

    types = {name: type_of(type_) for name, type_ in EVENT.items()}
    for view, columns in VIEWS.items():
        fields = ", ".join(f"{name} {type_of(type_)}" for name, type_ in columns.items())
        types[view] = f"STRUCT({fields})"
    return types


def arrow_schema() -> pa.Schema:
    import pyarrow as pa

    types = {
        "int": pa.int32(),
        "bigint": pa.int64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("ms", "UTC"),
    }

    def fields(columns: dict[str, str]) -> list[pa.Field]:
        return [pa.field(name, types[type_]) for name, type_ in columns.items()]

    structs = [pa.field(view, pa.struct(fields(columns))) for view, columns in VIEWS.items()]
    return pa.schema([*fields(EVENT), *structs])
