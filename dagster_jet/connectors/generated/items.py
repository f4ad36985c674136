"""Rows given in the program, to try out and test pipelines."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.generated.numbered import NumberedReader, checked_rate, tasks_for
from dagster_jet.connectors.values.declared_types import check_json_columns
from dagster_jet.connectors.values.json_objects import VALUE_COLUMN, JsonObjects
from dagster_jet.contract import BadRowRule, Source, SourceFrame
from dagster_jet.core.ddl import split_ddl
from dagster_jet.errors import ConfigurationError
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NUMBER = "__number"


@dataclass(frozen=True)
class ItemsSource(Source):
    """Rows as JSON objects, in order; all available from the start unless there is a rate."""

    rows: tuple[str, ...] = field(repr=False)
    schema: str
    rate: float | None = None
    stage: str = field(default="items", compare=False, repr=False)

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Any] | Sequence[Any]], schema: str, rate: float | None
    ) -> ItemsSource:
        """Raises `ConfigurationError`: the rows are no list, or one is neither an object nor as
        long as the schema."""
        if isinstance(rows, str) or not isinstance(rows, Sequence):
            raise ConfigurationError(
                f"rows: a {type(rows).__name__} is not a list of rows.",
                cure='Give list(generator), frame.to_dict("records") of pandas, or '
                "table.to_pylist() of Arrow.",
            )
        checked_rate(rate, len(rows))
        check_json_columns(schema)
        names = [name for name, _ in split_ddl(schema)]
        return cls(tuple(_as_json(n, row, names) for n, row in enumerate(rows)), schema, rate)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def bytes_per_row(self) -> int | None:
        return None if not self.rows else sum(map(len, self.rows)) // len(self.rows)

    def row_schema(self) -> str:
        return self.schema

    def describe(self) -> dict[str, str]:
        return {"kind": "items", "rows": f"{len(self.rows):,}"}

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> NumberedReader:
        named = ItemsSource(self.rows, self.schema, self.rate, stage)
        return NumberedReader(named, bad_rows)

    def frames(
        self, spark: SparkSession, numbers: range, start_ms: int, bad_rows: BadRowRule | None
    ) -> SourceFrame:
        from pyspark.sql import functions as F

        position = F.concat(F.lit("row "), _NUMBER)
        frames = JsonObjects(self.schema).frames(
            self._messages(spark, numbers), bad_rows, self.stage, position
        )
        return SourceFrame(frames.rows.drop(_NUMBER), frames.dead_letters, frames.shared)

    def prepared(self, spark: SparkSession, numbers: Callable[[], range], start_ms: int) -> None:
        """Its tasks have the rows themselves."""

    def first_bad(self, spark: SparkSession, numbers: range) -> str | None:
        from pyspark.sql import functions as F

        position = F.concat(F.lit("row "), _NUMBER)
        return JsonObjects(self.schema).first_bad(self._messages(spark, numbers), position)

    def _messages(self, spark: SparkSession, numbers: range) -> DataFrame:
        ids = spark.range(numbers.start, numbers.stop, 1, tasks_for(spark, numbers))
        task = ItemsTask(numbers.start, self.rows[numbers.start : numbers.stop])
        return ids.mapInArrow(OwnTask(task, self.stage), f"{_NUMBER} long, {VALUE_COLUMN} string")


@dataclass(frozen=True)
class ItemsTask:
    """Looks up the rows of numbers, in Spark's tasks."""

    first: int
    rows: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0)
            values = [self.rows[number - self.first] for number in numbers.to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [numbers, pa.array(values, pa.string())], names=[_NUMBER, VALUE_COLUMN]
            )


def _as_json(number: int, row: Any, names: Sequence[str]) -> str:
    if isinstance(row, str):
        return row  # like a message, valid or not
    if not isinstance(row, Mapping):
        if not isinstance(row, Sequence) or len(row) != len(names):
            raise ConfigurationError(
                f"row {number}: {row!r} is not one value for each of {', '.join(names)}.",
                cure="Give each row as a mapping by column, or as its values in order.",
            )
        row = dict(zip(names, row, strict=True))
    if unknown := sorted(set(row) - set(names)):
        raise ConfigurationError(
            f"row {number}: there is no column {', '.join(unknown)} in the schema.",
            cure=f"Its columns are {', '.join(names)}.",
        )
    try:
        return json.dumps(row, default=_plain)
    except TypeError as error:
        raise ConfigurationError(f"row {number}: {error}.") from None


def _plain(value: Any) -> Any:
    """Converts a value to the form that Spark reads from JSON."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{value!r} has no form in JSON")
