"""Messages that a task makes from Arrow are those that the JVM makes, byte for byte."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.kafka.arrow_messages import as_messages, can_convert
from dagster_jet.connectors.kafka.messages import MessageLayout, message_columns
from dagster_jet.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "name string, number bigint, small tinyint, yes boolean, day date, at timestamp, "
    "wall timestamp_ntz, value string, bytes binary"
)
PLAIN = MessageLayout((), "json", None, None, None, None, None)
LAYOUTS = {
    "no key": PLAIN,
    "text": replace(PLAIN, key=("name",)),
    "number": replace(PLAIN, key=("number",)),
    "boolean": replace(PLAIN, key=("yes",)),
    "date": replace(PLAIN, key=("day",)),
    "time": replace(PLAIN, key=("at",)),
    "time without zone": replace(PLAIN, key=("wall",)),
    "several": replace(PLAIN, key=("name", "at", "number")),
    "all parts": replace(
        PLAIN, key=("name",), partition="small", timestamp="at", tombstone="yes", topic="value"
    ),
    "raw": replace(PLAIN, key=("number",), format="raw", tombstone="yes"),
}
_TEXTS = ("", "a", 'quo"te', "back\\slash", "größe", "\x00\x1f\n\t", "😀", "</script>", "\u2028")


def rows(seed: str, count: int = 300) -> list[tuple[Any, ...]]:
    draw = random.Random(seed)

    def some(value: Any) -> Any:
        return None if draw.random() < 0.15 else value

    def one() -> tuple[Any, ...]:
        at = datetime(1969, 12, 31, tzinfo=UTC) + timedelta(microseconds=draw.randrange(10**14))
        text = "".join(draw.choices(_TEXTS, k=draw.randrange(4)))
        return (
            some(text),
            some(draw.randrange(-(2**63), 2**63)),
            some(draw.randrange(-128, 128)),
            some(draw.random() < 0.5),
            some(date(1, 1, 1) + timedelta(days=draw.randrange(3_000_000))),
            some(at),
            some(at.replace(tzinfo=None)),
            some(text[::-1]),
        )

    return [one() for _ in range(count)]


_FAR_DAY = "CASE number % 3 WHEN 0 THEN day + 3000000 WHEN 1 THEN day - 3000000 ELSE day END"
"""Also after the year 9999 and before the year 0, which are written with a sign."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_both_make_the_same_messages(name: str, spark: SparkSession) -> None:
    layout = LAYOUTS[name]
    frame = spark.createDataFrame([(*row, None) for row in rows(name)], SCHEMA).drop("bytes")
    frame = frame.selectExpr("* EXCEPT (day)", f"{_FAR_DAY} AS day")
    (batch,) = frame.toArrow().combine_chunks().to_batches()
    assert can_convert(batch.schema, layout)
    made = as_messages(batch, layout)
    expected = frame.select(*message_columns(frame, layout)).toArrow()
    assert made.schema.names == expected.schema.names
    for column in made.schema.names:
        assert made.column(column).to_pylist() == expected.column(column).to_pylist(), column
    assert as_messages(made, layout) is made, "messages are not converted again"


def test_the_jvm_makes_the_others_or_says_why_not(spark: SparkSession) -> None:
    schema = pa.schema(
        {
            "k": pa.float64(),
            "h": pa.map_(pa.string(), pa.string()),
            "n": pa.int64(),
            "value": pa.binary(),
        }
    )
    others = (
        replace(PLAIN, key=("k",)),
        replace(PLAIN, key=("n",), headers="h"),
        replace(PLAIN, key=("n",)),  # a value in JSON with a map
    )
    for layout in others:
        assert not can_convert(schema, layout)
    assert can_convert(schema, replace(PLAIN, key=("n",), format="raw"))
    missing = replace(PLAIN, key=("nowhere",), format="raw")
    assert not can_convert(schema, missing)
    frame = spark.createDataFrame([], "n bigint, value binary")
    with pytest.raises(PipelineError, match="there is no column 'nowhere'"):
        message_columns(frame, missing)
