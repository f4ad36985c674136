"""`mapInArrow` for any column names: PySpark's own parses a name as a path into a struct."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class NamedColumns:
    """Restores the names of columns in the task."""

    task: Task
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


def map_in_arrow(frame: DataFrame, task: Task, result: StructType | str, stage: str) -> DataFrame:
    """Returns the result of a task on the frame's Arrow batches.

    Args:
        stage: the stage that errors name.
    """
    names = tuple(frame.columns)
    if not any("." in name or "`" in name for name in names):
        return frame.mapInArrow(OwnTask(task, stage), result)
    numbered = frame.toDF(*(f"c{number}" for number in range(len(names))))
    return numbered.mapInArrow(OwnTask(NamedColumns(task, names), stage), result)
