"""Rows of prepared frames that depend on the epoch: a task reads its parameters when it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.lateness import LateUntil
from dagster_jet.spark.tasks.epoch_parameters import current_parameters


@dataclass(frozen=True)
class LateRows:
    """Function that Spark runs on rows with their moment as the last column.

    Yields the rows, without it, that the watermark of earlier epochs has passed.
    """

    stage: str
    until: LateUntil

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = current_parameters().stages[self.stage]
        for batch in batches:  # all of them, also without a watermark: else the worker ends
            if given.before_ms is None:
                continue
            last = batch.num_columns - 1
            until = self.until(given.before_ms, given.expired_until_ms)
            late = batch.filter(pc.less_equal(batch.column(last), until))
            if late.num_rows:
                yield late.select(range(last))


@dataclass(frozen=True)
class IngestionTime:
    """Function that Spark runs on rows, to add the epoch's ingestion time as the last column."""

    node: str
    column: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time_ms = current_parameters().ingestion_ms[self.node]
        moment = pa.scalar(time_ms * 1000, pa.timestamp("us", tz="UTC"))
        for batch in batches:
            yield batch.append_column(self.column, pa.repeat(moment, batch.num_rows))
