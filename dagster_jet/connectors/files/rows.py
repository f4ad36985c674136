"""Rows of files as a frame: of whole local ones by Spark's own readers, of others by tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO

from dagster_jet.connectors.dealt import Dealt, OneShare
from dagster_jet.connectors.files.bad_rows import FILE_COLUMN, first_bad_row, forgiving
from dagster_jet.connectors.files.fewer_columns import filling
from dagster_jet.connectors.files.json_rows import can_parse
from dagster_jet.connectors.files.json_tasks import json_rows_by_tasks
from dagster_jet.connectors.files.places.location import StorageOptions, literally, scheme_of
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.task_rows import (
    divided,
    is_readable,
    rows_by_tasks,
    unknown_options,
)
from dagster_jet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

LARGE_BYTES = 8 << 20
"""A task of Python's costs more than what it saves of JSON, up to here."""


@dataclass
class Rows:
    """How files of one place are read in one session."""

    path: str
    storage_options: StorageOptions
    format: str
    schema: str | None
    options: Mapping[str, str]
    """Of Spark's reader."""
    columns: StructType | None = None
    """All that is looked at, of JSON: other columns, and other fields of structs, are null."""
    _reader: DataFrameReader | None = field(default=None, init=False)

    def check(self) -> None:
        """Raises `ConfigurationError` for what only Spark's own readers do."""
        if not self.is_remote:
            return
        if unknown := unknown_options(self.options):
            raise ConfigurationError(
                f"options: {', '.join(unknown)} is only known of local files.",
                cure="Leave it out, or bring the files here first.",
            )
        if self.schema is None and self.format != "parquet":
            raise ConfigurationError(
                f"schema: {self.format} files of {self.path!r} need one.",
                cure='Give column names and types: schema="id long, at timestamp".',
            )

    @property
    def is_remote(self) -> bool:
        return scheme_of(self.path) != "file"

    @property
    def can_be_cut(self) -> bool:
        """Parts of files can be read, by tasks."""
        return self.schema is not None and not unknown_options(self.options)

    def frame(
        self, spark: SparkSession, wanted: Sequence[Slice], *, with_file: bool = False
    ) -> DataFrame:
        """Their rows, with `FILE_COLUMN` if asked for. Runs nothing.

        Args:
            wanted: whole files; parts where they `can_be_cut`.
        """

        spark_reaches = not self.is_remote and all(part.is_whole for part in wanted)
        is_small = sum(part.size for part in wanted) < LARGE_BYTES
        by_spark = spark_reaches and (is_small or not all(is_readable(p.path) for p in wanted))
        if not with_file and self._parses_itself and not by_spark:
            return self._parsed(spark, self._dealt(spark, wanted))
        if spark_reaches:
            frame = self._local_reader(spark).load([literally(part.path) for part in wanted])
            if not with_file:
                return self._filled_up(frame)
            return frame.select("*", _path_of("_metadata.file_path").alias(FILE_COLUMN))
        frame = self._by_tasks(spark, self._dealt(spark, wanted))
        return frame if with_file else frame.drop(FILE_COLUMN)

    def prepared_frame(
        self, spark: SparkSession, wanted: Callable[[], Sequence[Slice]], *, with_file: bool = False
    ) -> DataFrame | None:
        """Of what one task learns when it runs; None if only Spark's own readers read it."""
        if not self.can_be_cut:
            return None
        dealt = OneShare(wanted)
        if self._parses_itself and not with_file:
            return self._parsed(spark, dealt)
        frame = self._by_tasks(spark, dealt)
        return frame if with_file else frame.drop(FILE_COLUMN)

    def _dealt(self, spark: SparkSession, wanted: Sequence[Slice]) -> Dealt[Slice]:
        return divided(wanted, self.format, spark.sparkContext.defaultParallelism)

    def _parsed(self, spark: SparkSession, dealt: Dealt[Slice]) -> DataFrame:
        assert self.columns is not None
        place = self.path, self.storage_options
        return self._filled_up(json_rows_by_tasks(spark, place, dealt, self.columns, self.options))

    def _by_tasks(self, spark: SparkSession, dealt: Dealt[Slice]) -> DataFrame:
        assert self.schema is not None
        return rows_by_tasks(
            spark,
            (self.path, self.storage_options),
            dealt,
            format=self.format,
            schema=self.schema,
            options=self.options,
        )

    @cached_property
    def _parses_itself(self) -> bool:
        return self.columns is not None and can_parse(self.columns, self.options)

    def _filled_up(self, frame: DataFrame) -> DataFrame:
        return frame if self._filling is None else frame.select(*self._filling)

    @cached_property
    def _filling(self) -> list[Column] | None:
        """Made once: every column is a call into the JVM."""
        from pyspark.sql.types import StructType

        if self.columns is None or self.schema is None:
            return None
        whole = StructType.fromDDL(self.schema)
        assert isinstance(whole, StructType)
        return None if self.columns == whole else filling(self.columns, whole)

    def _local_reader(self, spark: SparkSession) -> DataFrameReader:
        """Configured once: every option is a call into the JVM."""
        if self._reader is None:
            reader = spark.read.options(**self.options).format(self.format)
            schema = self.columns or self.schema
            self._reader = reader if schema is None else reader.schema(schema)
        return self._reader

    def first_bad(self, spark: SparkSession, wanted: Sequence[Slice]) -> str | None:
        """Best effort: file, line and text of a row that does not fit."""
        if self.format == "parquet" or self.schema is None:
            return None
        schema, options = forgiving(self.schema)
        given = {name: value for name, value in self.options.items() if name.lower() != "mode"}
        again = Rows(self.path, self.storage_options, self.format, schema, {**given, **options})
        by_path = {part.path: part.file for part in wanted}
        place = open_input(self.path, self.storage_options)

        def open_file(path: str) -> BinaryIO:
            return place.open(by_path[path])

        return first_bad_row(again.frame(spark, wanted, with_file=True), open_file)


def _path_of(url: str) -> Column:
    """The path as tasks name it, of a column with Spark's URL of a local file."""
    from pyspark.sql import functions as F

    # As in paths, a plus is a plus.
    path = F.url_decode(F.replace(F.col(url), F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(path, "^file:(//)?(?=/)", "")
