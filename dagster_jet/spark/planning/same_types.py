"""Checks the types of columns that are combined from two sides. Spark would convert one type to the
other, and fail at the first row that cannot be converted, naming neither stage nor column."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dagster_jet.errors import PipelineError


def check_same_types(
    job: str, stage: str, sides: Sequence[tuple[str, StructType]], columns: Sequence[str]
) -> None:
    """
    Args:
        sides: names of the combined inputs, with their columns.
        columns: columns of the first side to check, if the others have them.

    Raises:
        PipelineError: a column is, for example, a number on one side and text on another. Numbers
            of any width, and dates and timestamps, are converted without a loss or an error.
    """
    (first, types), *others = sides
    own = {field.name.lower(): field.dataType for field in types}
    for other, there in others:
        theirs = {field.name.lower(): field.dataType for field in there}
        for column in columns:
            one, two = own.get(column.lower()), theirs.get(column.lower())
            if one is None or two is None or _fit(one, two):
                continue
            raise PipelineError(
                f"the column {column!r} is {one.simpleString()} in {first!r} and "
                f"{two.simpleString()} in {other!r}.",
                job=job,
                stage=stage,
                cure="Cast one of them before, so that both are of one type.",
            )


def _fit(one: DataType, two: DataType) -> bool:
    match one, two:
        case (ArrayType(), ArrayType()):
            return _fit(one.elementType, two.elementType)
        case (MapType(), MapType()):
            return _fit(one.keyType, two.keyType) and _fit(one.valueType, two.valueType)
        case (StructType(), StructType()):
            theirs = {field.name.lower(): field.dataType for field in two}
            return all(_fit(f.dataType, theirs.get(f.name.lower(), NullType())) for f in one)
    return _kind(one) == _kind(two) or isinstance(one, NullType) or isinstance(two, NullType)


def _kind(type: DataType) -> str:
    for name, kinds in _KINDS.items():
        if isinstance(type, kinds):
            return name
    return type.typeName()


_KINDS: dict[str, type[DataType] | tuple[type[DataType], ...]] = {
    "number": NumericType,
    "text": StringType,
    "time": (DateType, TimestampType, TimestampNTZType),
}
