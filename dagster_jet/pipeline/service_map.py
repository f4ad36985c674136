"""The function of a stage that calls a service; see `map_using_service`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dagster_jet.core.job_context import Parameters
from dagster_jet.core.measures import Measures
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
    count: Callable[[Measures], None] | None = None
    """Receives the counters of each task. None: nobody reads them."""

    def in_job(
        self, job: str, parameters: Parameters, count: Callable[[Measures], None]
    ) -> ServiceMap:
        """Returns the function for one execution of a job."""
        factory = replace(self.factory, job=job, parameters=parameters)
        return replace(self, factory=factory, count=count)

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
            self.count,
        )
        return frame.mapInArrow(OwnTask(calls, self.factory.stage), result)
