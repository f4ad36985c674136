"""Rows of files as a DataFrame.

Our tasks read them, whatever the size of the epoch and the place of the files. Spark's own readers
are used for options and compressions that tasks do not support, and for Parquet where the result is
certainly the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from dagster_jet.connectors.files.bad_rows import (
    FAULT_COLUMN,
    FILE_COLUMN,
    first_bad_row,
    forgiving,
)
from dagster_jet.connectors.files.fewer_columns import filling
from dagster_jet.connectors.files.parquet_tasks import is_plainly, parquet_by_tasks
from dagster_jet.connectors.files.part_tasks import divided
from dagster_jet.connectors.files.partition_folders import columns_in, without
from dagster_jet.connectors.files.places.location import StorageOptions, literally, scheme_of
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.text_lines import is_readable, open_text
from dagster_jet.connectors.files.text_tasks import TextByTasks
from dagster_jet.connectors.task_shares import TaskShares, WholeSplit
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import ConfigurationError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

_OF_SPARKS_READERS = frozenset(
    (
        *("multiline", "linesep", "encoding", "charset", "compression", "recursivefilelookup"),
        *("pathglobfilter", "modifiedbefore", "modifiedafter", "inferschema", "mergeschema"),
        *("allowcomments", "singlevariantcolumn"),
    )
)
"""Options that tasks do not support: they change what a line is, or which files are read."""


@dataclass
class Rows:
    """Reads files of one place in one Spark session."""

    path: str
    storage_options: StorageOptions
    format: str
    schema: str | None
    options: Mapping[str, str]
    """Options of Spark's reader."""
    metadata: tuple[str, ...] = ()
    """Columns of the schema about a row's file (`file_metadata`)."""
    columns: StructType | None = None
    """Used columns and struct fields of JSON and Parquet; others are null."""
    is_file: bool = False
    """Whether the path is that of a file, whose name is not that of a folder."""
    _reader: DataFrameReader | None = field(default=None, init=False)

    def check(self) -> None:
        """Raises `ConfigurationError` if only Spark's readers could read the files, and they are
        remote, or have columns from elsewhere."""
        if self.folders and self.of_spark:
            raise ConfigurationError(
                f"options: {', '.join(self.of_spark)} cannot be used with the columns "
                f"{', '.join(self.folders)}, which are not in the files.",
                cure="Leave the options out, or the columns.",
            )
        if not self.is_remote:
            return
        if self.of_spark:
            raise ConfigurationError(
                f"options: {', '.join(self.of_spark)} is only known of local files.",
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

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """Columns from the names of folders, and about the file."""
        named = columns_in(self.path, self.schema or "", is_file=self.is_file)
        return (*named, *self.metadata)

    @cached_property
    def of_spark(self) -> list[str]:
        """Options that only Spark's readers support."""
        return sorted(name for name in self.options if name.lower() in _OF_SPARKS_READERS)

    @property
    def can_be_cut(self) -> bool:
        """Whether tasks can read parts of files."""
        return self.schema is not None and not self.of_spark

    def frame(
        self, spark: SparkSession, wanted: Sequence[Slice], *, with_file: bool = False
    ) -> DataFrame:
        """Returns the rows of the slices. Runs no Spark job.

        Args:
            wanted: whole files, or parts if `can_be_cut`.
            with_file: adds `FILE_COLUMN` and `FAULT_COLUMN` (`part_tasks.ReadParts`).

        Raises:
            SourceError: only Spark's readers can decompress a file, and it is remote.
        """
        by_spark = [part for part in wanted if self._is_for_spark(part)]
        if not with_file and self._is_plain_parquet(wanted):
            by_spark = list(wanted)
        others = [part for part in wanted if part not in by_spark]
        frames = []
        if by_spark or not wanted:
            frames.append(self._by_spark(spark, by_spark, with_file))
        if others:
            parallelism = spark.sparkContext.defaultParallelism
            # With dead letters, a Parquet file is good or bad as a whole.
            is_whole = with_file and self.format == "parquet"
            shares = divided(others, self.format, parallelism, as_they_are=is_whole)
            frames.append(self._by_tasks(spark, shares, with_file))
        return reduce(lambda a, b: a.unionAll(b), frames)

    def prepared_frame(
        self, spark: SparkSession, wanted: Callable[[], Sequence[Slice]], *, with_file: bool = False
    ) -> DataFrame | None:
        """Returns a frame whose task gets its slices when it runs; None if only Spark can read."""
        return self._by_tasks(spark, WholeSplit(wanted), with_file) if self.can_be_cut else None

    def _is_for_spark(self, part: Slice) -> bool:
        if self.can_be_cut and (self.format == "parquet" or is_readable(part.path)):
            return False
        if self.is_remote or self.folders:
            raise SourceError(
                "the compression of the file is not supported.",
                position=part.path,
                cure="Compress it with gzip (.gz) or bzip2 (.bz2), or not at all.",
            )
        return True

    def _is_plain_parquet(self, wanted: Sequence[Slice]) -> bool:
        if self.format != "parquet" or self.is_remote or self.folders or not self.can_be_cut:
            return False
        return all(part.is_whole and is_plainly(part.file, self._read) for part in wanted)

    def _by_spark(self, spark: SparkSession, wanted: Sequence[Slice], with_file: bool) -> DataFrame:
        frame = self._local_reader(spark).load([literally(part.path) for part in wanted])
        if not with_file:
            return self._filled_up(frame)
        from pyspark.sql import functions as F

        file, fault = _path_of("_metadata.file_path"), F.lit(None).cast("string")
        return frame.select("*", file.alias(FILE_COLUMN), fault.alias(FAULT_COLUMN))

    def _by_tasks(
        self, spark: SparkSession, shares: TaskShares[Slice], with_file: bool
    ) -> DataFrame:
        assert self.schema is not None
        place = self.path, self.storage_options
        own, named = self._divided
        text = TextByTasks(spark, place, shares, with_file, named)
        if self.format == "csv":
            frame = text.csv(without(self.schema, self.folders), self.options)
        elif self.format == "json":
            frame = text.json(own, self.options)
        else:
            frame = parquet_by_tasks(spark, place, shares, own, named, names_files=with_file)
        if self.folders:
            names = (FILE_COLUMN, FAULT_COLUMN) if with_file else ()
            frame = frame.select(*map(quoted_name, self._read.names), *names)
        return frame if with_file or self.format == "csv" else self._filled_up(frame)

    @cached_property
    def _divided(self) -> tuple[StructType, StructType]:
        """Used columns of the files, and those of their folders."""
        from pyspark.sql.types import StructType

        if not self.folders:
            return self._read, StructType([])
        own = [f for f in self._read if f.name not in self.folders]
        # Rows are counted, too.
        own = own or [f for f in self._whole if f.name not in self.folders]
        return StructType(own), StructType([f for f in self._read if f.name in self.folders])

    @cached_property
    def _read(self) -> StructType:
        """Used columns; all columns if none is used, because rows are counted, too."""
        return self.columns or self._whole

    @cached_property
    def _whole(self) -> StructType:
        from pyspark.sql.types import StructType

        assert self.schema is not None
        whole = StructType.fromDDL(self.schema)
        assert isinstance(whole, StructType)
        return whole

    def _filled_up(self, frame: DataFrame) -> DataFrame:
        return frame if self._filling is None else frame.select(*self._filling)

    @cached_property
    def _filling(self) -> list[Column] | None:
        """Cached: every column is a call into the JVM."""
        if self.columns is None or self._read == self._whole:
            return None
        return filling(self._read, self._whole)

    def _local_reader(self, spark: SparkSession) -> DataFrameReader:
        """Cached: every option is a call into the JVM."""
        if self._reader is None:
            reader = spark.read.options(**self.options).format(self.format)
            self._reader = reader if self.schema is None else reader.schema(self._read)
        return self._reader

    def first_bad(self, spark: SparkSession, wanted: Sequence[Slice]) -> str | None:
        """Returns file, line and text of a row that does not fit, best effort."""
        if self.format == "parquet" or self.schema is None:
            return None
        schema, options = forgiving(self.schema)
        given = {name: value for name, value in self.options.items() if name.lower() != "mode"}
        again = replace(self, schema=schema, options={**given, **options}, columns=None)
        by_path = {part.path: part.file for part in wanted}
        place = self.path, self.storage_options
        frame = again.frame(spark, wanted, with_file=True)
        return first_bad_row(frame, lambda path: open_text(place, by_path[path]))

    def first_where(
        self,
        spark: SparkSession,
        wanted: Sequence[Slice],
        is_meant: Callable[[DataFrame], Column],
    ) -> str | None:
        """Returns ``file: row as JSON`` of the first row that meets the condition."""
        from pyspark.sql import functions as F

        frame = self.frame(spark, wanted, with_file=True)
        columns = frame.drop(FILE_COLUMN, FAULT_COLUMN)
        shown = F.to_json(F.struct(*[columns[quoted_name(name)] for name in columns.columns]))
        found = frame.where(is_meant(frame) & F.col(FAULT_COLUMN).isNull())
        row = found.select(FILE_COLUMN, shown.alias("row")).first()
        return None if row is None else f"{row[0]}: {row[1][:200]}"


def _path_of(url: str) -> Column:
    """Converts a column of Spark's local file URLs to the paths that tasks use."""
    from pyspark.sql import functions as F

    # `url_decode` would decode a plus as a space.
    path = F.url_decode(F.replace(F.col(url), F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(path, "^file:(//)?(?=/)", "")
