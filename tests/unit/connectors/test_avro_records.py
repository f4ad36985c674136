"""Avro records: what becomes of them, and of what is none; a registry as it should and should not
be."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from dagster_jet import Secret, sources
from dagster_jet.connectors.values import schema_registry
from dagster_jet.connectors.values.avro_records import AvroRecords, avro_of
from dagster_jet.errors import ConfigurationError, ExecutorLostError, SourceError
from tests.servers.schema_registry import Registry

V1 = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "long"}]}
V2 = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "v", "type": "long"}, {"name": "w", "type": ["null", "string"]}],
}


def encoded(schema: dict[str, Any], record: dict[str, Any], number: int | None = None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    header = b"" if number is None else struct.pack(">bI", 0, number)
    return header + stream.getvalue()


def read(records: AvroRecords, *values: bytes | None) -> list[Any]:
    """Objects, or the text of what is none."""
    found = records.texts(values)
    return [None if t is None else json.loads(t) if t[:1] == b"{" else t.decode() for t in found]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    registry = Registry()
    monkeypatch.setenv("REGISTRY", registry.url())
    yield registry
    registry.close()


def test_one_schema_for_all():
    records = avro_of(json.dumps(V1), None)
    good = encoded(V1, {"v": 7})
    found = read(records, good, None, b"", good + b"x", b"\xff" * 20)
    assert found[:2] == [{"v": 7}, None]
    assert found[2].startswith("not an Avro record (EOFError")
    assert found[3] == "not an Avro record (ValueError: the record is followed by more bytes): 0e78"
    assert found[4].startswith("not an Avro record (") and found[4].endswith("ff" * 20)


def test_nanoseconds_are_times():
    kinds = {"at": "timestamp-nanos", "local": "local-timestamp-nanos"}
    fields = [{"name": n, "type": {"type": "long", "logicalType": k}} for n, k in kinds.items()]
    schema = {"type": "record", "name": "r", "fields": fields}
    message = encoded(schema, {"at": 1_700_000_000_123_456_789, "local": -1})
    assert read(avro_of(json.dumps(schema), None), message) == [
        {"at": "2023-11-14T22:13:20.123456+00:00", "local": "1969-12-31T23:59:59.999999"}
    ]


def _record(**fields: Any) -> dict[str, Any]:
    named = [{"name": name, "type": type} for name, type in fields.items()]
    return {"type": "record", "name": "r", "fields": named}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
LINKED = {**_record(n="long", next=["null", "linked"]), "name": "linked"}
UNREADABLE: dict[str, tuple[Any, str, str]] = {
    "a number as a time": ("long", "timestamp", "v is long, which cannot be read as timestamp"),
    "days": (["null", "int"], "date NOT NULL", "v is int, which cannot be read as date"),
    "a time of day": (
        {"type": "int", "logicalType": "time-millis"},
        "timestamp",
        "v is time-millis, which cannot be read as timestamp",
    ),
    "another unit": (
        {"type": "int", "logicalType": "timestamp-millis"},
        "timestamp",
        "v is int, which cannot be read as timestamp",
    ),
    "a text as bytes": ("string", "binary", "v is string, which cannot be read as binary"),
    "a decimal as bytes": (MONEY, "binary", "v is decimal, which cannot be read as binary"),
    "bytes as a text": ("bytes", "string", "v is bytes, which cannot be read as string"),
    "in an array": (
        {"type": "array", "items": ["null", "double"]},
        "array<timestamp>",
        "v.element is double, which cannot be read as timestamp",
    ),
    "in a map of records": (
        {"type": "map", "values": LINKED},
        "map<string, struct<other: int, next: struct<next: struct<n: timestamp_ntz>>>>",
        "v.value.next.next.n is long, which cannot be read as timestamp_ntz",
    ),
}
READABLE: dict[str, tuple[Any, str]] = {
    "a time": (["null", MILLIS], "timestamp"),
    "a time as a day": (MILLIS, "date"),
    "a day as a time": ({"type": "int", "logicalType": "date"}, "timestamp"),
    "a text as a time": ("string", "timestamp"),
    "bytes": ("bytes", "binary"),
    "fixed": ({"type": "fixed", "name": "f", "size": 2}, "binary"),
    "a number": ("long", "bigint"),
    "a number as a text": ("long", "string"),
    "nothing": ("null", "timestamp"),
    "a record in itself": (LINKED, "struct<n: long, next: struct<next: struct<n: string>>>"),
}


@pytest.mark.parametrize(("type", "column", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_field_that_a_column_would_take_for_something_else_is_refused(
    registry: Registry, type: Any, column: str, said: str
) -> None:
    """Failed before: milliseconds counted as seconds, and texts were decoded as base64."""
    schema = _record(v=type)
    with pytest.raises(ConfigurationError, match=f"avro_schema: the field {said}") as refused:
        avro_of(json.dumps(schema), None, f"other int, v {column}")
    assert "convert it with select()" in str(refused.value)
    records = avro_of(None, Secret(env="REGISTRY"), f"v {column}")
    header = struct.pack(">bI", 0, registry.register(schema))
    [found] = read(records, header + bytes(8))
    assert found.startswith(f"not an Avro record (ValueError: the field {said}. Declare the column")
    assert found.endswith("): " + (header + bytes(8)).hex())


@pytest.mark.parametrize(("type", "column"), READABLE.values(), ids=READABLE)
def test_what_a_column_takes_as_it_is_meant(type: Any, column: str) -> None:
    avro_of(json.dumps(_record(v=type)), None, f"v {column}")


def test_each_message_by_the_schema_that_it_names(registry: Registry):
    numbers = registry.register(V1), registry.register(V2)
    records = pickle.loads(pickle.dumps(avro_of(None, Secret(env="REGISTRY"))))
    old, new = encoded(V1, {"v": 1}, numbers[0]), encoded(V2, {"v": 2, "w": "x"}, numbers[1])
    assert read(records, old, new, old) == [{"v": 1}, {"v": 2, "w": "x"}, {"v": 1}]
    assert registry.asked == [1, 2], "each is asked for once"


def test_what_names_no_schema_is_a_bad_row(registry: Registry):
    registry.schemas[3] = {"schema": "message M {}", "schemaType": "PROTOBUF"}
    records = avro_of(None, Secret(env="REGISTRY"))
    found = read(records, b"\x01\x00\x00\x00\x01", b"{}", encoded(V1, {"v": 1}, 9), b"\0\0\0\0\3")
    assert "it does not begin with the number of a schema" in found[0]
    assert found[1].endswith(": 7b7d")
    assert "the registry has no schema 9" in found[2]
    assert "the schema 3 is not Avro" in found[3]
    registry.schemas[9] = {"schema": json.dumps(V1)}
    assert read(records, encoded(V1, {"v": 1}, 9)) == [{"v": 1}], "it has got one since"


def test_a_registry_that_refuses_or_is_away(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    number = registry.register(V1)
    message = encoded(V1, {"v": 1}, number)
    records = avro_of(None, Secret(env="REGISTRY"))
    monkeypatch.setattr(schema_registry, "_PAUSE_MS", 10)
    schema_registry._client.cache_clear()
    registry.failures = 2
    assert read(records, message) == [{"v": 1}], "it is asked again"
    monkeypatch.setenv("REGISTRY", registry.url("wrong-wrong"))
    with pytest.raises(SourceError, match="env:REGISTRY refuses the request: 401") as refused:
        read(records, message)
    monkeypatch.setattr(schema_registry, "_RETRIES", 1)
    texts = [str(refused.value)]
    for password in ("wrong-wrong", "wrong/wrong"):  # one with a slash ends in "nonnumeric port"
        monkeypatch.setenv("REGISTRY", f"http://me:{password}@127.0.0.1:1")
        with pytest.raises(ExecutorLostError, match="env:REGISTRY cannot be reached") as away:
            read(records, message)
        texts.append(str(away.value))
    assert not any("wrong" in text for text in texts)


def test_what_cannot_be_is_refused_when_it_is_written():
    def source(**more: Any) -> Any:
        return sources.kafka("h:1", topics=["t"], **more)

    avro = {"format": "avro", "schema": "v long"}
    with pytest.raises(ConfigurationError, match="either avro_schema or registry is needed"):
        source(**avro)
    with pytest.raises(ConfigurationError, match="registry: 'r:8081' is not a URL of HTTP"):
        source(**avro, registry="r:8081")
    with pytest.raises(ConfigurationError, match="either avro_schema or registry is needed"):
        source(**avro, avro_schema=json.dumps(V1), registry="http://r")
    with pytest.raises(ConfigurationError, match="avro_schema: this is not a valid Avro schema"):
        source(**avro, avro_schema="{")
    with pytest.raises(ConfigurationError, match="avro_schema: it is of a string"):
        source(**avro, avro_schema='{"type": "string"}')
    with pytest.raises(ConfigurationError, match="schema: avro values need one"):
        source(format="avro", registry="http://r")
    with pytest.raises(ConfigurationError, match="none for other values"):
        source(schema="v long", registry="http://r")
    with pytest.raises(ConfigurationError, match="contains its password") as refused:
        source(**avro, registry="http://me:hush@r")
    assert "hush" not in str(refused.value)
