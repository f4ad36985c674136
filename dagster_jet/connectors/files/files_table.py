"""Files as a batch table to enrich a stream with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.files_source import FORMATS
from dagster_jet.connectors.files.parquet_schema import check_schema, schema_of
from dagster_jet.connectors.files.part_tasks import divided
from dagster_jet.connectors.files.places.location import (
    StorageOptions,
    absolute,
    literally,
    storage_options,
)
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputPlace
from dagster_jet.connectors.files.row_frames import Rows
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.text_tasks import TextByTasks
from dagster_jet.connectors.values.declared_types import check_nullable
from dagster_jet.contract import Table
from dagster_jet.core.choices import check_known
from dagster_jet.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class FilesTable(Table):
    """A batch table for enrichment: read completely when an execution starts, and again at the
    interval of `enrich(refresh=...)`."""

    path: str
    format: str
    schema: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    asset_key: tuple[str, ...] = ()
    """Asset key of this table in an orchestrator; () if none."""
    storage_options: StorageOptions = ()
    shared: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path))
        storage = storage_options(self.path, dict(self.storage_options))
        object.__setattr__(self, "storage_options", storage)
        check_known("format", self.format, FORMATS)
        check_nullable(self.schema or "")
        self.rows.check()

    def describe(self) -> dict[str, str]:
        return {"kind": "files", "path": self.path, "format": self.format}

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> FilesTable:
        check_reachable(self.path, job, stage, is_reachable=on_one_host or self.shared)
        return self

    def frame(self, spark: SparkSession) -> DataFrame:
        place = open_input(self.path, self.storage_options)
        if not self.rows.is_remote:
            if not os.path.exists(self.path):
                raise self._missing()
            has_partitions = os.path.isdir(self.path) and place.listing().subfolders
            if self.rows.of_spark or has_partitions:
                return self._by_spark(spark, [self.path])
        files = self._files()
        schema = self.schema or self._found_schema(spark, place, files)
        return replace(self, schema=schema)._rows_of(files).frame(spark, files)

    def parts(self) -> frozenset[Any]:
        """Returns its files, with sizes and times; those of local subfolders, too."""
        place = open_input(self.path, self.storage_options, not self.rows.is_remote)
        with suppress(FileNotFoundError, NotADirectoryError):
            only = place.find(self.path)
            return frozenset(place.listing().files if only is None else (only,))
        return frozenset()

    def _by_spark(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        reader = spark.read.options(**self._defaults)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        elif self.format == "csv":
            reader = reader.option("inferSchema", "true")
        reader = reader.options(**dict(self.options)).format(self.format)
        return reader.load([literally(path) for path in paths])

    def _found_schema(self, spark: SparkSession, place: InputPlace, files: Sequence[Slice]) -> str:
        """Infers the schema of the files, as DDL."""
        if self.format == "parquet":
            first, *others = sorted(part.file for part in files)
            schema = schema_of(place, first, None, None)
            for file in others:
                check_schema(place, file, schema, None, None)
            return schema
        if self.format == "json":
            from pyspark.sql.types import StructType

            shares = divided(files, self.format, spark.sparkContext.defaultParallelism)
            nothing = StructType([])
            text = TextByTasks(
                spark, (self.path, self.storage_options), shares, names_files=False, folders=nothing
            )
            found = spark.read.options(**self.rows.options).json(text.json_objects())
        else:
            found = self._by_spark(spark, [part.path for part in files])
        return str(found.schema.toDDL())

    def locate_bad_row(self, spark: SparkSession) -> str | None:
        """Returns file, line and text of a row that does not fit, best effort."""
        files = self._files()
        return self._rows_of(files).first_bad(spark, files)

    @property
    def _defaults(self) -> dict[str, str]:
        defaults = {"mode": "FAILFAST"}  # by default bad values silently become null
        if self.format == "csv":
            # Check header names: columns in another order would be confused.
            defaults |= {"header": "true", "enforceSchema": "false"}
        return defaults

    @property
    def rows(self) -> Rows:
        """Reader of its files."""
        options = {**self._defaults, **dict(self.options)}
        return Rows(self.path, self.storage_options, self.format, self.schema, options)

    def _rows_of(self, files: Sequence[Slice]) -> Rows:
        return replace(self.rows, is_file=files[0].path == self.path)

    def _files(self) -> Sequence[Slice]:
        """Returns the single file, or the files of the folder."""
        place = open_input(self.path, self.storage_options)
        only = place.find(self.path)
        files = place.listing().files if only is None else (only,)
        if not files:
            raise self._missing()
        return tuple(map(Slice.whole, files))

    def _missing(self) -> SourceError:
        return SourceError(
            f"the table {self.path!r} does not exist.", cure="Create it, or correct the path."
        )
