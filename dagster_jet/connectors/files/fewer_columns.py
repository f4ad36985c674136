"""Restores columns that were not read, as nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.core.ddl import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


def filling(columns: StructType, whole: StructType) -> list[Column]:
    """Returns the columns of `whole`, computed from rows with `columns`: missing columns and fields
    are null. Null structs stay null."""
    from pyspark.sql import functions as F

    there = {field.name: field.dataType for field in columns}
    return [
        _filled(F.col(quoted_name(f.name)), there[f.name], f.dataType).alias(f.name)
        if f.name in there
        else F.lit(None).cast(f.dataType).alias(f.name)
        for f in whole
    ]


def _filled(column: Column, type: DataType, whole: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if type == whole or not (isinstance(type, StructType) and isinstance(whole, StructType)):
        return column
    there = {field.name: field.dataType for field in type}
    fields = [
        _filled(column.getField(f.name), there[f.name], f.dataType).alias(f.name)
        if f.name in there
        else F.lit(None).cast(f.dataType).alias(f.name)
        for f in whole
    ]
    return F.when(column.isNotNull(), F.struct(*fields))
