"""Checks each epoch's plan against the analysis: a user's function that runs again may act
differently, and a source's reader may not follow its schema."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from dagster_jet.contract import SOURCE_PARTITION_COLUMN
from dagster_jet.errors import PipelineError, SourceError, UserFunctionError
from dagster_jet.pipeline.graph import SourceNode, TransformNode
from dagster_jet.spark.plans.nodes import schema_json
from dagster_jet.spark.plans.passed_columns import passes_on
from dagster_jet.spark.plans.row_by_row import check_row_by_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_REMEMBERED = 256
_TEXT = re.compile(r"(var)?char\(\d+\)")
"""SQL types that are strings in frames."""


def declared_schema(job: str, node: SourceNode) -> str:
    """Returns a source's columns as DDL, at a start.

    Raises:
        PipelineError: the source does not say them.
    """
    schema = node.source.row_schema()
    if schema is None:
        raise PipelineError(
            "the source does not say its columns.",
            job=job,
            stage=node.name,
            cure="Return them from Source.row_schema(), or return a source that knows them from "
            "Source.at_start().",
        )
    return schema


def check_as_declared(job: str, node: SourceNode, rows: DataFrame) -> None:
    """
    Args:
        rows: the frame that the source's reader made of a split. Stages are built for the columns
            of the source's definition.

    Raises:
        SourceError: it has other columns.
    """
    found, expected = _columns_of(schema_json(rows)), _declared(declared_schema(job, node))
    if found != expected:
        raise SourceError(
            f"a frame of the source has the columns {', '.join(found)}; its schema says "
            f"{', '.join(expected)}.",
            job=job,
            stage=node.name,
            cure="Select and cast the columns of the schema, in its order, where the frame is "
            "made, or correct the schema.",
        )


@lru_cache(_REMEMBERED)
def _columns_of(schema: str) -> tuple[str, ...]:
    fields = StructType.fromJson(json.loads(schema)).fields
    return tuple(_described(field) for field in fields if field.name != SOURCE_PARTITION_COLUMN)


@lru_cache(_REMEMBERED)
def _declared(schema: str) -> tuple[str, ...]:
    declared = StructType.fromDDL(schema)
    assert isinstance(declared, StructType)
    return tuple(_described(field) for field in declared)


def check_as_analysed(
    job: str,
    node: TransformNode,
    given: DataFrame,
    returned: DataFrame,
    analysed: DataFrame,
    *,
    keeps_partition: bool,
) -> None:
    """
    Args:
        given: input of the function in this epoch.
        returned: its result in this epoch.
        analysed: its result for empty input. Downstream stages are built for these columns.
        keeps_partition: `given` has the column of the source's partition, from which watermarks are
            taken after this function.

    Raises:
        PipelineError: the function reads several of the stream's rows at once.
        UserFunctionError: it returned other columns, or used the partition's column.
    """
    expected = [_described(f) for f in analysed.schema]
    found = [_described(f) for f in returned.schema if f.name != SOURCE_PARTITION_COLUMN]
    if found != expected:
        raise UserFunctionError(
            f"in this epoch the function returned the columns {', '.join(found)}; when the "
            "pipeline was analysed, with a frame without rows, it returned "
            f"{', '.join(expected)}.",
            job=job,
            stage=node.name,
            cure="Return the same columns in every epoch, also for a frame without rows. To "
            "change the columns, start the job again.",
        )
    if not node.per_epoch:
        check_row_by_row(job, node.name, given, returned)
    if keeps_partition and not passes_on(given, returned, SOURCE_PARTITION_COLUMN):
        raise UserFunctionError(
            "in this epoch the function changed the column of the source's partition, because it "
            "worked on all columns; when the pipeline was analysed it did not change it.",
            job=job,
            stage=node.name,
            cure="Name the columns in the function instead of using all of them.",
        )


def _described(field: Any) -> str:
    return f"{field.name} {_TEXT.sub('string', field.dataType.simpleString())}"
