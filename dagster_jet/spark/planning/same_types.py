"""Checks the types of columns that are combined from two sides. Spark would convert one type to the
other, and fail at the first row that cannot be converted, naming neither stage nor column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from dagster_jet.errors import PipelineError

Sides = Sequence[tuple[str, StructType]]
"""Names of the combined inputs, with their columns."""


def check_same_columns(job: str, stage: str, sides: Sides) -> None:
    """Checks inputs whose rows are put together, by name.

    Raises:
        PipelineError: a column is missing on one side, or has another type. A column without a
            type, `NULL`, fits all.
    """
    (first, types), *others = sides
    for other, there in others:
        for one, two in ((types, there), (there, types)):
            names = {field.name.lower() for field in two}
            if missing := [field.name for field in one if field.name.lower() not in names]:
                raise PipelineError(
                    f"{first if two is types else other!r} has no column "
                    f"{', '.join(map(repr, missing))}, which "
                    f"{other if two is types else first!r} has.",
                    job=job,
                    stage=stage,
                    cure="Select the same columns on all sides.",
                )
        _check(job, stage, (first, types), (other, there), types.names, _are_equal)


def check_same_keys(job: str, stage: str, sides: Sides, keys: Sequence[str]) -> None:
    """Checks the columns by which rows of two inputs are compared.

    Raises:
        PipelineError: a column is, for example, a number on one side and text on the other. Whole
            numbers and decimals of any width, and dates and timestamps, compare exactly.
    """
    first, second = sides
    _check(job, stage, first, second, keys, _fit)


def _check(
    job: str,
    stage: str,
    first: tuple[str, StructType],
    second: tuple[str, StructType],
    columns: Sequence[str],
    fit: Callable[[DataType, DataType], bool],
) -> None:
    own, theirs = ({f.name.lower(): f.dataType for f in types} for _, types in (first, second))
    for column in columns:
        one, two = own.get(column.lower()), theirs.get(column.lower())
        if one is None or two is None or fit(one, two):
            continue
        raise PipelineError(
            f"the column {column!r} is {one.simpleString()} in {first[0]!r} and "
            f"{two.simpleString()} in {second[0]!r}.",
            job=job,
            stage=stage,
            cure="Cast one of them before, so that both are of one type.",
        )


def _are_equal(one: DataType, two: DataType) -> bool:
    """Whether they are equal, apart from nulls and comments; fields are compared by place."""
    if isinstance(one, NullType) or isinstance(two, NullType):
        return True
    return one.simpleString() == two.simpleString()


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
    "fraction": (FloatType, DoubleType),
    "number": NumericType,
    "text": StringType,
    "time": (DateType, TimestampType, TimestampNTZType),
}
