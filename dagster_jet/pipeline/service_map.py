"""The function of a stage that calls a service; see `map_using_service`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.operators.user.services import ServiceFactory
from dagster_jet.pipeline.output_type import output_type
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ServiceMap:
    """A transform's function: from a frame to the results of the service."""

    factory: ServiceFactory
    function: Callable[[Any, Any], Any]
    output_schema: str
    batch_rows: int
    concurrency: int
    retries: int

    def __call__(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.types import to_arrow_schema

        from dagster_jet.operators.user.service_calls import ServiceCalls

        result = output_type(self.output_schema, frame.schema, self.factory.stage)
        calls = ServiceCalls(
            self.factory,
            self.function,
            to_arrow_schema(result, timezone="UTC"),
            self.batch_rows,
            self.concurrency,
            self.retries,
        )
        return frame.mapInArrow(OwnTask(calls, self.factory.stage), result)
