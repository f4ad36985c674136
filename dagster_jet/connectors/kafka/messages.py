"""Converts rows to messages in the JVM: key, value, headers, partition and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_jet.connectors.values.json_text import JSON_TEXT
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS = ("__key", "__value", "__headers", "__partition", "__timestamp", "__topic")
_BINARY = ("string", "binary")
_NESTED = ("struct", "array", "map")


@dataclass(frozen=True)
class MessageLayout:
    """Columns from which messages are made; None: messages have no such part."""

    key: tuple[str, ...]
    format: str
    """Format of the values: "json" or "raw"."""
    headers: str | None
    partition: str | None
    timestamp: str | None
    tombstone: str | None
    """Column that is true in rows whose messages have no value."""
    topic: str | None

    @property
    def apart(self) -> tuple[str, ...]:
        """Columns that a JSON value omits."""
        named = (self.headers, self.partition, self.timestamp, self.tombstone, self.topic)
        return tuple(name for name in named if name is not None)


def message_columns(frame: DataFrame, layout: MessageLayout) -> list[Column]:
    """Returns key and value as bytes, and the other parts of `COLUMNS` that the layout has.

    Raises:
        PipelineError: a column does not exist, or has the wrong type.
    """
    from pyspark.sql import functions as F

    types, key = dict(frame.dtypes), layout.key
    headers, partition, timestamp = layout.headers, layout.partition, layout.timestamp
    tombstone, topic = layout.tombstone, layout.topic
    for name in (*key, *layout.apart):
        if name not in types:
            raise PipelineError(
                f"there is no column {name!r}.", cure=f"There are {', '.join(frame.columns)}."
            )
    _check(types, partition, ("int", "bigint", "smallint", "tinyint"), "a whole number")
    _check(types, timestamp, ("timestamp",), "a timestamp")
    _check(types, tombstone, ("boolean",), "a boolean")
    _check(types, topic, ("string",), "a string")
    _check(types, headers, ("map<string,string>", "map<string,binary>"), "map<string,string>")

    def column(name: str) -> Column:
        return F.col(quoted_name(name))

    if layout.format == "raw":
        if types.get("value") not in _BINARY:
            raise PipelineError(
                'format="raw" takes the column value, as binary or string.',
                cure=f"There are {', '.join(f'{n} {t}' for n, t in types.items())}.",
            )
        content = column("value").cast("binary")
    else:
        names = [name for name in frame.columns if name not in layout.apart]
        content = F.to_json(F.struct(*map(column, names)), JSON_TEXT).cast("binary")
    if tombstone is not None:
        content = F.when(column(tombstone), F.lit(None)).otherwise(content)
    if len(key) == 1 and types[key[0]] in _BINARY:
        key_bytes = column(key[0]).cast("binary")
    elif len(key) == 1 and types[key[0]] in ("timestamp", "timestamp_ntz"):
        # Formatted as in values: a cast would use the session's zone, which must not affect keys.
        text = F.to_json(F.struct(column(key[0]).alias("k")), JSON_TEXT)
        key_bytes = F.get_json_object(text, "$.k").cast("binary")
    elif len(key) == 1 and types[key[0]].startswith(_NESTED):
        # A cast does not quote texts, so that different values have one text.
        key_bytes = F.to_json(column(key[0]), JSON_TEXT).cast("binary")
    elif len(key) == 1:
        key_bytes = column(key[0]).cast("string").cast("binary")
    elif key:
        key_bytes = F.to_json(F.struct(*map(column, key)), JSON_TEXT).cast("binary")
    else:
        key_bytes = F.lit(None).cast("binary")
    found = [key_bytes.alias("__key"), content.alias("__value")]
    if headers is not None:
        found.append(column(headers).cast("map<string,binary>").alias("__headers"))
    if partition is not None:
        found.append(column(partition).cast("bigint").alias("__partition"))
    if timestamp is not None:
        found.append(F.unix_millis(column(timestamp)).alias("__timestamp"))
    if topic is not None:
        found.append(column(topic).alias("__topic"))
    return found


def _check(types: dict[str, str], name: str | None, wanted: Sequence[str], words: str) -> None:
    if name is not None and types[name] not in wanted:
        raise PipelineError(f"column {name!r} is {types[name]}, expected {words}.")
