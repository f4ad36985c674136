"""Output schemas of functions: DDL, in which `*` stands for the columns of the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from dagster_jet.core.ddl import quoted_name, split_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

ALL = "*"


def output_type(output_schema: str, stream: StructType) -> StructType:
    """
    Args:
        stream: the columns of the rows that the function gets.
    """
    from pyspark.sql.types import StructType

    fields: list[StructField] = []
    for name, kind in split_ddl(output_schema):
        own = stream if name == ALL else StructType.fromDDL(f"{quoted_name(name)} {kind}")
        fields += cast("StructType", own).fields
    return StructType(fields)
