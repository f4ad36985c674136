"""`TaggedRows` as Spark frames: combines frames into one, and extracts those of one kind.

Columns are built once per execution, because a call into the JVM per column and epoch adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from dagster_jet.core.ddl import quoted_name
from dagster_jet.spark.planning.operator_plan import spark_schema
from dagster_jet.spark.plans.union import union_all
from dagster_jet.spark.tasks.tagged_rows import TAG_COLUMN, TaggedRows, column_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class TaggedFrames:
    """Frames of one layout."""

    rows: TaggedRows

    @cached_property
    def type(self) -> StructType:
        return spark_schema(self.rows.schema)

    def put(self, frames: Mapping[int, DataFrame]) -> DataFrame | None:
        """The rows of all frames, each with its tag; None if there are no frames."""
        if self.rows.is_one:
            return frames.get(0)
        own = [frame.select(*self._into[tag]) for tag, frame in frames.items()]
        return union_all(own) if own else None

    def take(self, frame: DataFrame, tag: int) -> DataFrame:
        """The rows with one tag, as they were put in."""
        if self.rows.is_one:
            return frame
        return frame.where(self._is[tag]).select(*self._out_of[tag])

    @cached_property
    def _into(self) -> tuple[tuple[Column, ...], ...]:
        return tuple(map(self._columns_into, range(len(self.rows.kinds))))

    @cached_property
    def _is(self) -> tuple[Column, ...]:
        return tuple(F.col(TAG_COLUMN) == tag for tag in range(len(self.rows.kinds)))

    @cached_property
    def _out_of(self) -> tuple[tuple[Column, ...], ...]:
        tagged, shared = self.rows, self.rows.shared
        common = () if shared is None else (F.col(quoted_name(shared.name)),)
        return tuple(
            (
                *common,
                *(
                    F.col(column_name(column)).alias(field.name)
                    for column, field in zip(tagged.columns(tag), tagged.own(tag), strict=True)
                ),
            )
            for tag in range(len(tagged.kinds))
        )

    def _columns_into(self, tag: int) -> tuple[Column, ...]:
        tagged = self.rows
        columns = [] if tagged.shared is None else [F.col(quoted_name(tagged.shared.name))]
        columns.append(F.lit(tag).alias(TAG_COLUMN))
        own = dict(zip(tagged.columns(tag), tagged.own(tag), strict=True))
        for column, each in enumerate(tagged.types):
            value = (
                F.col(quoted_name(own[column].name))
                if column in own
                else F.lit(None).cast(from_arrow_type(each))
            )
            columns.append(value.alias(column_name(column)))
        return tuple(columns)
