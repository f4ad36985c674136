"""Shared part of the trial sinks: rows are staged in the job's store and shown by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.staging import RowsWriter, SegmentWriter, StagedInStore
from dagster_jet.contract import TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StagedHere(StagedInStore):
    """Methods of a `Sink` that do not depend on the rows."""

    def takes(self, schema: pa.Schema) -> bool:
        return True

    def render(self, frame: DataFrame) -> DataFrame:
        return frame

    def open_writer(self, transaction: TransactionId) -> RowsWriter:
        area = self.area(transaction.job, transaction.sink)
        return RowsWriter(SegmentWriter(area, transaction, self.describe()["kind"]))

    def destination(self) -> dict[str, Any]:
        return {name: value for name, value in self.describe().items() if name != "guarantee"}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> Any:
        return cls(**{name: value for name, value in destination.items() if name != "kind"})
