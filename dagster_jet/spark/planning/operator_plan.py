"""Plans a stateful stage: its operator, and the frame that feeds it.

A plan contains the JVM's work before rows enter Python: windows send partial aggregates, row
operators send the rows with their key's hash and event time. Columns are built once per execution,
because a call into the JVM per column and epoch adds up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    FloatType,
    IntegerType,
    ShortType,
    StructType,
    TimestampType,
)

from dagster_jet.core.ddl import quoted_name
from dagster_jet.operators.first_stage import FirstStage
from dagster_jet.operators.lateness import LateUntil, before_watermark
from dagster_jet.operators.operator import PARTITION_COLUMN, Operator
from dagster_jet.operators.row_input import RowInput
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.spark.tasks.input_statistics import READ_FROM_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Shape = Callable[["DataFrame"], "DataFrame"]
"""Maps an input's rows to the operator's input, partition first."""


_UNHASHABLE = re.compile(r"\b(map|variant)\b")
"""Types of columns that Spark does not hash."""


@dataclass(frozen=True)
class Late:
    """Which rows of an input are late."""

    moment: Column
    """bigint, ms: the event time of a row, or the end of its frame. A row without one is not late:
    the operator refuses it."""
    until: LateUntil

    def condition(self, before_ms: int, expired_until_ms: int | None) -> Column:
        return self.moment <= F.lit(self.until(before_ms, expired_until_ms))


@dataclass(frozen=True)
class OperatorPlan:
    """The operator of a stateful stage, and its input frames, as analysed once."""

    operator: Operator
    shapes: tuple[Shape, ...]
    """Per input: shape of rows fed by Spark."""
    inputs: tuple[RowInput, ...]
    """Per input: conversion of rows from another stage of the same task."""
    late: tuple[Late, ...]
    """Per input. Empty: no row is late."""
    filters_late: bool
    """Late rows are always removed before `shapes`, because a row of the operator's input stands
    for several and does not show which are late."""
    result_type: StructType = field(repr=False)
    exact_shapes: tuple[Shape, ...] = ()
    """Per input: shape of rows from which late ones are not removed; empty: `shapes`."""
    statistics_columns: tuple[pa.Field, ...] = ()
    """Columns after the operator's, from which the task computes its input statistics."""

    @property
    def counts_partitions(self) -> bool:
        """Whether the shapes need the column with the partition of a row."""
        return any(field.name == READ_FROM_COLUMN for field in self.statistics_columns)


@dataclass(frozen=True)
class Partitions:
    """The key's hash and logical partition, with the same expressions everywhere."""

    count: int

    def hash(self, keys: Sequence[str], *, of: DataFrame | None = None) -> Column:
        """
        Args:
            of: hash numbers of every width as bigint or double, as Python does; else as Spark does.
        """
        columns = quoted(keys)
        if of is not None:
            types = {f.name: f.dataType for f in of.schema}
            wide = {ByteType: "long", ShortType: "long", IntegerType: "long", FloatType: "double"}
            columns = [
                column.cast(wide[kind]) if (kind := type(types[key])) in wide else column
                for key, column in zip(keys, columns, strict=True)
            ]
        return F.xxhash64(*columns) if columns else F.lit(0).cast("long")

    def spread(self, frame: DataFrame) -> Column:
        """The hash of rows without key: a partition that follows from the row."""
        columns = [
            f.name for f in frame.schema if not _UNHASHABLE.search(f.dataType.simpleString())
        ]
        return F.pmod(self.hash(columns), F.lit(self.count))

    def copies(self) -> Column:
        """The hashes of the copies of a row: each partition."""
        return F.explode(F.sequence(F.lit(0).cast("long"), F.lit(self.count - 1).cast("long")))

    def of(self, keys: Sequence[str]) -> Column:
        return self.of_hash(self.hash(keys))

    def of_hash(self, key_hash: Column) -> Column:
        return F.pmod(key_hash, F.lit(self.count)).cast("int").alias(PARTITION_COLUMN)


def row_input(
    operator: Operator,
    ordinal: int,
    keys: Sequence[str],
    partitions: Partitions,
    time: EventTime | None,
    *,
    names: Sequence[str] = (),
    hashes_wide: bool = False,
    first_stage: FirstStage | None = None,
) -> RowInput:
    """Conversion of rows from another stage of the task to an input of the operator."""
    return RowInput(
        operator.input_schemas[ordinal],
        tuple(keys),
        partitions.count,
        None if time is None else time.column,
        0 if time is None else time.lag_ms,
        tuple(names),
        hashes_wide,
        first_stage,
    )


def event_time_ms(frame: DataFrame, time: EventTime) -> Column:
    return F.expr(time_sql(frame, time))


def behind_watermark(frame: DataFrame, time: EventTime) -> Late:
    return Late(event_time_ms(frame, time), before_watermark)


def time_sql(frame: DataFrame, time: EventTime) -> str:
    """Event time in ms as SQL over `frame`'s columns."""
    stands = column_sql(frame, time.column)
    return f"({stands} - {time.lag_ms}L)" if time.lag_ms else stands


def moment_sql(frame: DataFrame, time: EventTime) -> str:
    """Event time as SQL: a timestamp with its microseconds, or ms."""
    if isinstance(frame.schema[time.column].dataType, TimestampType):
        return quoted_name(time.column)
    return time_sql(frame, time)


def column_sql(frame: DataFrame, column: str) -> str:
    """Value of a time column in ms, as SQL."""
    name = quoted_name(column)
    if isinstance(frame.schema[column].dataType, TimestampType):
        return f"unix_millis({name})"
    return f"cast({name} as bigint)"


def quoted(columns: Sequence[str]) -> list[Column]:
    """Columns by their full names, including dots."""
    return [F.col(quoted_name(name)).alias(name) for name in columns]


def arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=False)
