"""Lanes as Spark sees them: rows of several frames into one, and of one kind out of it.

Columns are built once per execution: a call into the JVM per column and epoch adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from dagster_jet.core.ddl import quoted_name
from dagster_jet.spark.planning.operator_plan import spark_schema
from dagster_jet.spark.tasks.lanes import LANE_COLUMN, Lanes, column_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class LaneFrames:
    """The frames of one `Lanes`."""

    lanes: Lanes

    @cached_property
    def type(self) -> StructType:
        return spark_schema(self.lanes.schema)

    def put(self, frames: Mapping[int, DataFrame]) -> DataFrame | None:
        """The rows of all frames, each in its lane; None if there are no frames."""
        if self.lanes.is_one:
            return frames.get(0)
        own = [frame.select(*self._into[lane]) for lane, frame in frames.items()]
        return reduce(lambda a, b: a.union(b), own) if own else None

    def take(self, frame: DataFrame, lane: int) -> DataFrame:
        """The rows of one lane, as they were put into it."""
        if self.lanes.is_one:
            return frame
        return frame.where(self._is[lane]).select(*self._out_of[lane])

    @cached_property
    def _into(self) -> tuple[tuple[Column, ...], ...]:
        return tuple(map(self._columns_into, range(len(self.lanes.kinds))))

    @cached_property
    def _is(self) -> tuple[Column, ...]:
        return tuple(F.col(LANE_COLUMN) == lane for lane in range(len(self.lanes.kinds)))

    @cached_property
    def _out_of(self) -> tuple[tuple[Column, ...], ...]:
        lanes, shared = self.lanes, self.lanes.shared
        common = () if shared is None else (F.col(quoted_name(shared.name)),)
        return tuple(
            (
                *common,
                *(
                    F.col(quoted_name(column_name(lane, field.name))).alias(field.name)
                    for field in lanes.own(lane)
                ),
            )
            for lane in range(len(lanes.kinds))
        )

    def _columns_into(self, lane: int) -> tuple[Column, ...]:
        lanes = self.lanes
        columns = [] if lanes.shared is None else [F.col(quoted_name(lanes.shared.name))]
        columns.append(F.lit(lane).alias(LANE_COLUMN))
        for other in range(len(lanes.kinds)):
            for field in lanes.own(other):
                own = (
                    F.col(quoted_name(field.name))
                    if other == lane
                    else F.lit(None).cast(from_arrow_type(field.type))
                )
                columns.append(own.alias(column_name(other, field.name)))
        return tuple(columns)
