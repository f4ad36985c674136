"""The function of a stage that calls a service; see `map_using_service`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from dagster_jet.core.ddl import quoted_name, split_ddl
from dagster_jet.operators.user.services import ServiceFactory
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField, StructType

_ALL = "*"
"""In an output schema: the columns of the stream."""


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

        result = self._result_type(frame)
        calls = ServiceCalls(
            self.factory,
            self.function,
            to_arrow_schema(result, timezone="UTC"),
            self.batch_rows,
            self.concurrency,
            self.retries,
        )
        return frame.mapInArrow(OwnTask(calls, self.factory.stage), result)

    def _result_type(self, frame: DataFrame) -> StructType:
        from pyspark.sql.types import StructType

        fields: list[StructField] = []
        for name, kind in split_ddl(self.output_schema):
            own = (
                StructType.fromDDL(f"{quoted_name(name)} {kind}") if name != _ALL else frame.schema
            )
            fields += cast("StructType", own).fields
        return StructType(fields)
