"""Avro values of topics, as columns: every type, and what is no record."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from dagster_jet import Jet, Pipeline, sinks, sources
from dagster_jet.connectors.trial import forget
from dagster_jet.testing import collected
from tests.long import long
from tests.servers.schema_registry import Registry

from .kafka_world import KafkaWorld

FIELDS: dict[str, Any] = {
    "n": "long",
    "i": "int",
    "d": "double",
    "f": "float",
    "b": "boolean",
    "text": "string",
    "blob": "bytes",
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "day": {"type": "int", "logicalType": "date"},
    "money": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "color": {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]},
    "items": {"type": "array", "items": "long"},
    "names": {"type": "map", "values": "string"},
    "inner": {"type": "record", "name": "inner", "fields": [{"name": "x", "type": "int"}]},
    "none": ["null", "string"],
}
SCHEMA = {
    "type": "record",
    "name": "all",
    "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
}
DDL = (
    "n long, i int, d double, f float, b boolean, text string, blob binary, at timestamp, "
    "day date, money decimal(10,2), color string, items array<long>, names map<string,string>, "
    "inner struct<x: int>, none string"
)
RECORD: dict[str, Any] = {
    "n": 2**62,
    "i": -1,
    "d": 0.1,
    "f": 0.5,
    "b": True,
    "text": 'a "b" \n ü',
    "blob": bytes(range(256)),
    "at": datetime(2026, 1, 1, 12, 30, 1, 123456, tzinfo=timezone.utc),
    "day": date(1969, 12, 31),
    "money": Decimal("-12345678.90"),
    "color": "BLUE",
    "items": [1, -(2**60)],
    "names": {"k": "v"},
    "inner": {"x": 7},
    "none": None,
}


def encoded(record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, record)
    return stream.getvalue()


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry(is_open=True)  # Spark's workers do not see this process's variables
    yield registry
    registry.close()


@pytest.mark.parametrize("by", [pytest.param("schema", marks=long), "registry"])
def test_every_type_of_avro_is_a_column(tmp_path: Path, spark: Any, registry: Registry, by: str):
    kafka = KafkaWorld()
    topic = kafka.topic()
    header = struct.pack(">bI", 0, registry.register(SCHEMA)) if by == "registry" else b""
    kafka.send(topic, [header + encoded(RECORD), b"no record", None])
    how: dict[str, Any] = {"registry": f"http://{registry.place}"}
    if by == "schema":
        how = {"avro_schema": json.dumps(SCHEMA)}
    forget("good"), forget("bad")
    p = Pipeline("avro")
    how["tombstones"] = "dead-letter"
    source = sources.kafka(kafka.servers, topics=[topic], format="avro", schema=DDL, **how)
    rows = p.read_from(source, name="topic")
    rows.dead_letter_to(sinks.collect("bad"), name="bad")
    rows.write_to(sinks.collect("good"), name="good")
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0, show_progress=False) as jet:
        jet.run(p)
    [row] = collected("good").to_pylist()
    assert {**row, "names": dict(row["names"])} == RECORD
    letters = sorted(collected("bad").to_pylist(), key=lambda one: one["position"])
    assert [one["position"] for one in letters] == [f"{topic}/0@1", f"{topic}/0@2"]
    assert letters[0]["raw"].startswith("not an Avro record (")
    assert letters[0]["raw"].endswith(b"no record".hex())
    assert letters[1]["raw"] is None
