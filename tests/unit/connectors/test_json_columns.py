"""Columns that JSON has no values for are refused when a source is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_jet import sources
from dagster_jet.errors import ConfigurationError

SOURCES: dict[str, Callable[[str], Any]] = {
    "Kafka": lambda ddl: sources.kafka("h:1", topics=["t"], schema=ddl),
    "Avro": lambda ddl: sources.kafka(
        "h:1", topics=["t"], format="avro", registry="http://r", schema=ddl
    ),
    "Debezium": lambda ddl: sources.kafka("h:1", topics=["t"], format="debezium", schema=ddl),
    "RabbitMQ": lambda ddl: sources.rabbitmq("amqp://me@h/v", queue="q", schema=ddl),
    "SQS": lambda ddl: sources.sqs("https://sqs.eu-west-1.amazonaws.com/1/q", schema=ddl),
    "items": lambda ddl: sources.items([], schema=ddl),
    "files": lambda ddl: sources.files("/in", format="json", schema=ddl),
    "entries of a map": lambda ddl: sources.map_entries("m", schema=ddl).row_schema(),
    "journal of a map": lambda ddl: sources.map_journal("m", schema=ddl).row_schema(),
}


@pytest.mark.parametrize("define", SOURCES.values(), ids=SOURCES)
def test_a_map_whose_keys_are_no_texts(define: Callable[[str], Any]) -> None:
    """Failed before: an error of Spark's in the first epoch, which named no column."""
    for wrong in ("map<int,string>", "array<struct<x: int, y: map<date, int>>> NOT NULL"):
        with pytest.raises(ConfigurationError, match="keys of maps in JSON are texts") as told:
            define(f"n bigint, m {wrong}")
        assert "transform_keys" in str(told.value)
    define("n bigint, m map<string, map<STRING, array<int>>>")


def test_only_json_has_texts_as_keys() -> None:
    sources.files("/in", format="parquet", schema="m map<int,string>")
