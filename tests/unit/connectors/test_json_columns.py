"""Columns that JSON has no values for are refused when a source is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_jet import sources, tables
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


@pytest.mark.parametrize("define", SOURCES.values(), ids=SOURCES)
def test_texts_with_a_length(define: Callable[[str], Any]) -> None:
    """Failed before: an error of Spark's in the first epoch, which named no column."""
    for wrong in ("varchar(3)", "CHAR(3) NOT NULL", "array<struct<x: int, y: varchar(9)>>"):
        with pytest.raises(ConfigurationError, match=r"reads texts as string only.* as string"):
            define(f"n bigint, m {wrong}")
    define("n bigint, varchar string COMMENT 'varchar(3)', m struct<char: string>")


def test_texts_with_a_length_in_files_without_json() -> None:
    for format in ("csv", "parquet"):
        with pytest.raises(ConfigurationError, match=r"'s' is varchar\(3\)"):
            sources.files("/in", format=format, schema="n bigint, s varchar(3)")


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("define", [sources.files, tables.files], ids=["source", "table"])
def test_files_have_no_columns_without_nulls(define: Callable[..., Any], format: str) -> None:
    """Failed before, with dead letters and a null: "a row could not be processed", which named no
    file. Without dead letters, and in CSV, the null was read."""
    for wrong in ("long NOT NULL", "struct<x: int not  null> COMMENT 'x'"):
        with pytest.raises(ConfigurationError, match=r"'v' is .* may have a null there"):
            define("/in", format=format, schema=f"k string, v {wrong}")
    define("/in", format=format, schema="k string COMMENT 'is not null', v struct<`not null`: int>")


def test_only_json_has_texts_as_keys() -> None:
    sources.files("/in", format="parquet", schema="m map<int,string>")
