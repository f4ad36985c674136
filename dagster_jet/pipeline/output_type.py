"""Output schemas of functions: DDL, in which `*` stands for the columns of the stream, and
`type_of(column)` for the type of one of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from dagster_jet.core.ddl import plain_name, quoted_name, split_ddl
from dagster_jet.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

ALL = "*"
_TYPE_OF = re.compile(r"type_of\((?:(sum)\()?([^()]+)\)?\)", re.IGNORECASE)
_DECIMAL_DIGITS_MAX, _DIGITS_OF_A_SUM = 38, 10


def output_type(output_schema: str, stream: StructType, name: str | None = None) -> StructType:
    """Returns the Spark type of a function's results.

    Args:
        output_schema: DDL, which may have `*`.
        stream: the columns of the rows that the function gets.
        name: name of the stage, for errors.

    Raises:
        PipelineError: `type_of` names no column of the stream, or a sum of no numbers.
    """
    from pyspark.sql.types import StructField, StructType

    fields: list[StructField] = []
    for column, kind in split_ddl(output_schema):
        like = _TYPE_OF.fullmatch(kind.strip())
        if column == ALL:
            fields += stream.fields
        elif like is not None:
            kind_of = _type_of(plain_name(like[2].strip()), like[1] is not None, stream, name)
            fields.append(StructField(column, kind_of))
        else:
            own = StructType.fromDDL(f"{quoted_name(column)} {kind}")
            fields += cast("StructType", own).fields
    return StructType(fields)


def _type_of(column: str, is_sum: bool, stream: StructType, stage: str | None) -> DataType:
    from pyspark.sql.types import DecimalType, DoubleType, FractionalType, IntegralType, LongType

    if column not in stream.names:
        raise PipelineError(
            f"there is no column {column!r}.",
            stage=stage,
            cure=f"There are {', '.join(stream.names)}.",
        )
    kind = stream[column].dataType
    if not is_sum:
        return kind
    if isinstance(kind, DecimalType):
        digits = min(kind.precision + _DIGITS_OF_A_SUM, _DECIMAL_DIGITS_MAX)
        return DecimalType(digits, kind.scale)
    if isinstance(kind, IntegralType):
        return LongType()
    if isinstance(kind, FractionalType):
        return DoubleType()
    raise PipelineError(
        f"the column {column!r} is {kind.simpleString()}: only numbers have a sum.",
        stage=stage,
        cure="Cast it in a select() before.",
    )
