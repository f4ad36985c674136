"""Frames of stateless nodes: the same on the analysis' empty inputs and in an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from dagster_jet.core.ddl import quoted_name
from dagster_jet.core.function_name import class_name
from dagster_jet.errors import PipelineError, UserFunctionError, where_raised
from dagster_jet.pipeline.graph import EnrichNode, TimestampsNode, TransformNode
from dagster_jet.pipeline.service_map import ServiceMap
from dagster_jet.spark.runtime import SparkRuntime
from dagster_jet.system.own_task import naming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@contextmanager
def planning_of(job: str, node: str) -> Iterator[None]:
    """Converts Spark's errors inside into errors of this node, and names it in the library's."""
    try:
        with naming(node, job):
            yield
    except PySparkException as error:
        raise PipelineError(
            f"Spark cannot plan the stage: {_without_stack(error)}", job=job, stage=node
        ) from None


def _without_stack(error: PySparkException) -> str:
    """Spark's message in one line: of a text that it cannot parse also the text itself, in which
    the message names the position."""
    said = str(error).split("JVM stacktrace:")[0].strip()
    message, _, text = said.partition("== SQL ==")
    lines = [line for line in text.splitlines() if line.strip() and set(line) != set("-^")]
    lines = [line for line in lines if not line.lstrip("-").startswith("^^^")]
    first = message.strip().splitlines()[0] if message.strip() else type(error).__name__
    return f"{first} The text: {' '.join(lines)}" if lines else first


def transformed(
    runtime: SparkRuntime, node: TransformNode, frame: DataFrame, *kept: str
) -> DataFrame:
    """The result of the user's function.

    Args:
        kept: names of further columns, for a projection.

    Raises:
        UserFunctionError: it raised, or did not return a frame.
    """
    from pyspark.sql import DataFrame

    job, function = runtime.job, node.function
    if isinstance(function, ServiceMap):
        function = function.in_job(job, runtime.parameters, runtime.tally.of(node.name))
    try:
        result = function(frame, *kept)
    except PySparkException:
        raise
    except Exception as error:
        raise UserFunctionError(
            f"{where_raised(error)}the function raised {type(error).__name__}: {error}.",
            job=job,
            stage=node.name,
            cure="Correct the function; nothing of this epoch was written.",
        ) from error
    if not isinstance(result, DataFrame):
        raise UserFunctionError(
            f"the function returned {class_name(result)}, not a DataFrame of Spark.",
            job=job,
            stage=node.name,
            cure="Return the transformed frame.",
        )
    return result


def merged(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda a, b: a.unionByName(b), frames)


def enriched(node: EnrichNode, frame: DataFrame, table: DataFrame) -> DataFrame:
    joined = frame.join(F.broadcast(table), list(node.on), node.how)
    return joined if node.adds_columns else joined.select(*map(quoted_name, frame.columns))


def with_ingestion_time(node: TimestampsNode, frame: DataFrame, time_ms: int) -> DataFrame:
    """One time for the epoch, set by the driver, so that retried tasks agree."""
    return frame.withColumn(node.timestamps.column, F.timestamp_millis(F.lit(time_ms)))
