"""Shared part of the trial sinks: rows are staged in the job's store and shown by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.contract import TransactionId
from dagster_jet.connectors.staging import RowsWriter, SegmentWriter, StoreArea
from dagster_jet.store import Store, StoreHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StagedHere:
    """Methods of a `Sink` that do not depend on the rows."""

    store: Store | StoreHandle | None

    def describe(self) -> dict[str, str]:
        raise NotImplementedError

    def check(self, job: str, stage: str, *, is_new_job: bool) -> None:
        """No check: there is no place that could be missing."""

    def takes(self, schema: pa.Schema) -> bool:
        return True

    def render(self, frame: DataFrame) -> DataFrame:
        return frame

    def area(self, job: str, sink: str) -> StoreArea:
        assert self.store is not None, "the engine puts it on the job's store first"
        return StoreArea(self.store, job, sink)

    def open_writer(self, transaction: TransactionId) -> RowsWriter:
        area = self.area(transaction.job, transaction.sink)
        return RowsWriter(SegmentWriter(area, transaction, self.describe()["kind"]))

    def __getstate__(self) -> dict[str, Any]:
        """Gives tasks a handle of the store."""
        store = self.store.handle() if isinstance(self.store, Store) else self.store
        return {**self.__dict__, "store": store}

    def destination(self) -> dict[str, Any]:
        return {name: value for name, value in self.describe().items() if name != "guarantee"}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> Any:
        return cls(**{name: value for name, value in destination.items() if name != "kind"})
