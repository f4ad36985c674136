"""Reads JSON lines and CSV in tasks, wherever the files are.

Each task opens its slices of the split, on condition that the content is as planned, and reads
lines. Spark's `from_json` and `from_csv` parse them. Arrow parses JSON where the result is the same
(`json_rows`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.connectors.files import json_rows
from dagster_jet.connectors.files.bad_rows import CORRUPT_COLUMN, FAULT_COLUMN, FILE_COLUMN
from dagster_jet.connectors.files.json_objects import objects_of
from dagster_jet.connectors.files.part_tasks import ReadParts
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.text_lines import blocks_of, is_decompressed, lines_of
from dagster_jet.connectors.task_shares import TaskShares
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import BadRowError
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LINE_COLUMN = "__line"
_PARSED_COLUMN = "__parsed"
_HEADER_OPTIONS = frozenset({"header", "enforceschema"})
"""Options of files, not of lines."""


@dataclass(frozen=True)
class TextByTasks:
    """Makes frames that are read by tasks. Runs no Spark job.

    Args:
        spark: the session.
        place: arguments of `open_input`.
        shares: slices of each task.
        names_files: see `ReadParts`.
        folders: columns from the names of folders, behind those of the files.
    """

    spark: SparkSession
    place: tuple[str, StorageOptions]
    shares: TaskShares[Slice]
    names_files: bool
    folders: StructType

    def json(self, columns: StructType, options: Mapping[str, str]) -> DataFrame:
        """Returns the columns of all objects.

        Args:
            columns: used columns, and `CORRUPT_COLUMN` if wanted.
            options: options of Spark's reader.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        plain = StructType([field for field in columns if field.name != CORRUPT_COLUMN])
        if not json_rows.can_parse(plain, options):
            plain = StructType([])
        read = ReadJson(
            self.place,
            self.shares,
            self.names_files,
            self._arrow_folders,
            to_arrow_schema(plain, timezone="UTC"),
            is_utc=self.spark.conf.get("spark.sql.session.timeZone") == "UTC",
        )
        # A null line costs nothing here; other lines are parsed once for all columns.
        parsed = F.from_json(LINE_COLUMN, columns, dict(options))
        rows = self._lines(read, plain).withColumn(_PARSED_COLUMN, parsed)
        is_read = F.col(LINE_COLUMN).isNull()
        selected = []
        for name in columns.names:
            column = F.col(f"{_PARSED_COLUMN}.{quoted_name(name)}")
            if name in plain.names:
                column = F.when(is_read, F.col(quoted_name(name))).otherwise(column)
            selected.append(column.alias(name))
        return rows.select(*selected, *self._more)

    def csv(self, schema: str, options: Mapping[str, str]) -> DataFrame:
        """See `json`, with a schema as DDL: columns are matched by position."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        columns = StructType.fromDDL(schema)
        assert isinstance(columns, StructType)
        given = {name.lower(): value for name, value in options.items()}
        names = [name for name in columns.names if name != CORRUPT_COLUMN]
        header = _header(names, given)
        read = ReadCsv(
            self.place,
            self.shares,
            self.names_files,
            self._arrow_folders,
            given.get("comment"),
            header,
        )
        parsing = {name: v for name, v in options.items() if name.lower() not in _HEADER_OPTIONS}
        lines = self._lines(read, StructType([]))
        parsed = lines.withColumn(_PARSED_COLUMN, F.from_csv(LINE_COLUMN, schema, parsing))
        selected = [f"{_PARSED_COLUMN}.{quoted_name(name)}" for name in columns.names]
        return parsed.select(*selected, *self._more)

    def json_objects(self) -> DataFrame:
        """Returns the texts of all objects in one column."""
        from pyspark.sql.types import StructType

        read = ReadJson(
            self.place, self.shares, False, self._arrow_folders, columns=pa.schema([]), is_utc=True
        )
        return self._lines(read, StructType([]))

    def _lines(self, read: ReadParts, columns: StructType) -> DataFrame:
        from pyspark.sql.types import StringType, StructField, StructType

        line = StructField(LINE_COLUMN, StringType())
        names = (StructField(name, StringType()) for name in self._names)
        types = StructType([*columns.fields, line, *self.folders.fields, *names])
        tasks = self.shares.tasks
        return self.spark.range(0, tasks, 1, tasks).mapInArrow(OwnTask(read), types)

    @property
    def _arrow_folders(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.folders, timezone="UTC")

    @property
    def _more(self) -> list[str]:
        """Columns behind those of the lines."""
        return [*map(quoted_name, self.folders.names), *self._names]

    @property
    def _names(self) -> tuple[str, ...]:
        return (FILE_COLUMN, FAULT_COLUMN) if self.names_files else ()


# --- tasks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadJson(ReadParts):
    """Yields columns of blocks that Arrow can parse, and the object texts of other blocks."""

    columns: pa.Schema
    """Columns for Arrow; empty if Spark has to parse all."""
    is_utc: bool
    checks_whole_files: ClassVar = True

    @property
    def schema(self) -> pa.Schema:
        return self.columns.append(pa.field(LINE_COLUMN, pa.string()))

    def rows(self, part: Slice) -> Iterator[pa.RecordBatch]:
        for block in blocks_of(self.place, part):
            parsed = None
            if len(self.columns):
                parsed = json_rows.parse(block, self.columns, is_utc=self.is_utc)
            if parsed is not None:
                yield parsed.append_column(LINE_COLUMN, pa.nulls(parsed.num_rows, pa.string()))
                continue
            objects = objects_of(block)
            nothing = [pa.nulls(len(objects), field.type) for field in self.columns]
            yield pa.RecordBatch.from_arrays([*nothing, objects], self.schema.names)

    def check(self, part: Slice) -> None:
        _check_text(self, part)


@dataclass(frozen=True)
class Header:
    """Expected first line of each CSV file."""

    names: tuple[str, ...]
    separator: str
    quote: str
    is_checked: bool

    def check(self, line: str, path: str) -> None:
        """Raises `BadRowError` if the file's columns or their order differ."""
        found = self._names_in(line)
        is_same = [name.strip().lower() for name in found] == [name.lower() for name in self.names]
        if self.is_checked and not is_same:
            raise BadRowError(
                f"the header of the file does not fit the schema: {', '.join(found)}; expected: "
                f"{', '.join(self.names)}.",
                position=path,
                cure="Use the file's column names in schema=, in its order. Or match columns by "
                'position: options={"enforceSchema": "true"}.',
            )

    def _names_in(self, line: str) -> list[str]:
        if len(self.separator) > 1:
            return [name.strip().strip(self.quote) for name in line.split(self.separator)]
        try:
            (found,) = csv.reader([line], delimiter=self.separator, quotechar=self.quote or None)
        except csv.Error:  # the reader limits the length of a field
            return [line[:200]]
        return found


def _header(names: list[str], given: Mapping[str, str]) -> Header | None:
    if given.get("header", "false").lower() != "true":
        return None
    separator = given.get("sep", given.get("delimiter", ",")).replace("\\t", "\t")
    is_checked = given.get("enforceschema", "true").lower() == "false"
    return Header(tuple(names), separator, given.get("quote", '"'), is_checked)


@dataclass(frozen=True)
class ReadCsv(ReadParts):
    """Yields the lines that are rows."""

    comment: str | None
    header: Header | None
    checks_whole_files: ClassVar = True

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(LINE_COLUMN, pa.string())])

    def rows(self, part: Slice) -> Iterator[pa.RecordBatch]:
        header = self.header
        if header is not None and part.begin and self._first(Slice(part.file, 0, part.begin)):
            header = None
        for lines in self._lines(part):
            begin = 0
            if header is not None and len(lines):
                header.check(lines[0].as_py(), part.path)
                begin, header = 1, None
            yield pa.RecordBatch.from_arrays([lines[begin:]], self.schema.names)

    def check(self, part: Slice) -> None:
        _check_text(self, part)
        if self.header is not None:
            first = self._first(Slice.whole(part.file))
            if first is not None:
                self.header.check(first, part.path)

    def _first(self, part: Slice) -> str | None:
        lines = (lines[0].as_py() for lines in self._lines(part) if len(lines))
        return next(lines, None)

    def _lines(self, part: Slice) -> Iterator[pa.StringArray]:
        for block in blocks_of(self.place, part):
            lines = lines_of(block)
            if self.comment is not None:
                lines = lines.filter(pc.invert(pc.starts_with(lines, self.comment)))
            yield lines


def _check_text(read: ReadParts, part: Slice) -> None:
    """Decompresses a file to detect damage; uncompressed lines are checked individually."""
    if is_decompressed(part.path):
        for _ in blocks_of(read.place, part):
            pass
