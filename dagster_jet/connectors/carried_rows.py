"""Prepared frames for sources whose rows the driver has read: queues, changes, tables by a column.

The rows of a small split travel to the task among the parameters of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.core.arrow_types import ArrowTable
from dagster_jet.operators.rows.casting import cast_rows
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_MAX = 10_000
BYTES_MAX = 1 << 20
"""Largest split that is carried. Its rows are a property of the Spark job, in base 64."""


@dataclass(frozen=True)
class CarriedRows:
    """The task that has the rows of its epoch."""

    rows: Callable[[], pa.Table]
    columns: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from cast_rows(self.rows(), self.columns).to_batches()


def can_be_carried(rows: ArrowTable) -> bool:
    """Whether these rows are few enough for `SplitParameters`: at most 10,000 rows and 1 MiB."""
    return bool(rows.num_rows <= ROWS_MAX and rows.nbytes <= BYTES_MAX)


def carried_frame(
    spark: SparkSession, rows: Callable[[], ArrowTable], empty: ArrowTable, stage: str
) -> DataFrame | None:
    """A frame like `spark.createDataFrame(rows())` for the rows of any small split, for
    `SourceReader.prepared_frame`. A task that runs again has the same rows.

    Args:
        rows: called in the task; returns the split's rows.
        empty: a table without rows, with the columns of all splits.
        stage: the source's name, for errors of the task.

    Returns:
        None if Spark writes an event log, which would keep all rows for everybody to read.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    if spark.sparkContext.getConf().get("spark.eventLog.enabled", "false") == "true":
        return None
    types = spark.createDataFrame(empty).schema
    task = CarriedRows(rows, to_arrow_schema(types, timezone="UTC"))
    return spark.range(0, 1, 1, 1).mapInArrow(OwnTask(task, stage), types)
