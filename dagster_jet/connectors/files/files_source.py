"""Files as a replayable source: a folder into which finished files are moved.

Each file is read once, in order of (modification time, name): whole, or in byte ranges if it is too
large for an epoch (`slices`). Every snapshot has the files read, and how far, with size, time and
checksum. So a late file is not missed, and a change after reading is an error. A changed time alone
is no change: then the content is compared. Hidden and temporary names are ignored: write elsewhere,
then rename.

Files may be deleted once a committed snapshot has read them (`Job.consumed_files`). A file that is
deleted earlier cannot be read again after a crash, which raises `InputLostError`. Deleted files are
remembered for a time (`memory`).

A file is identified by its absolute path. Symbolic links are not followed, so a link at the old
place preserves the paths of a folder that was moved.

At-least-once: after a restart the files of the epochs since the last snapshot are read again.
"""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import realpath
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from dagster_jet.connectors.files.bad_rows import divided, forgiving
from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.file_metadata import check_metadata, with_metadata
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.connectors.files.input_cleaning import (
    InputCleaning,
    check_cleaning,
    handles_of,
    make_archive,
)
from dagster_jet.connectors.files.input_folder import InputFolder
from dagster_jet.connectors.files.memory import FileMemory, file_of_row, mark_of
from dagster_jet.connectors.files.parquet_schema import check_schema, schema_of_first
from dagster_jet.connectors.files.partition_folders import (
    columns_in,
    not_named,
    with_columns,
    without,
)
from dagster_jet.connectors.files.places.listing import found_in
from dagster_jet.connectors.files.places.location import (
    StorageOptions,
    absolute,
    is_pattern,
    scheme_of,
    storage_options,
)
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile, InputPlace, is_inside
from dagster_jet.connectors.files.recognition import Compared, Recognition
from dagster_jet.connectors.files.row_frames import Rows
from dagster_jet.connectors.files.row_size import RowSize, row_size
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.files.text_lines import is_readable
from dagster_jet.connectors.files.waiting_files import WaitingFiles
from dagster_jet.connectors.values.declared_types import (
    check_json_columns,
    check_nullable,
    check_texts,
)
from dagster_jet.contract import (
    Acknowledges,
    BadRowRule,
    InputFate,
    Lag,
    Sink,
    Source,
    SourceFrame,
    SourceReader,
    SplitParameters,
)
from dagster_jet.core.choices import check_known
from dagster_jet.errors import ConfigurationError, SourceError, SourceUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)

FORMATS = ("json", "csv", "parquet")
REMEMBER_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True)
class FilesSource(Source):
    """A folder, or a glob pattern, of JSON lines, CSV or Parquet files.

    Args:
        path: local folder or pattern, made absolute immediately; the name of an existing folder is
            not a pattern.
        format: "json" (lines), "csv" or "parquet".
        schema: columns and types as DDL; required for JSON and CSV.
        options: passed to Spark's reader, for example {"header": "true"}.
    """

    path: str
    format: str
    schema: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    storage_options: StorageOptions = ()
    shared: bool = field(default=False, compare=False, repr=False)
    """Whether a local folder is shared by all machines of a cluster."""
    asset_key: tuple[str, ...] = ()
    """Asset key of the folder in an orchestrator; () if none."""
    must_fit: bool = field(default=False, compare=False, repr=False)
    """Whether the schema is the first file's, and every other file must have the same columns."""
    remember_ms: int = field(default=REMEMBER_MS, compare=False, repr=False)
    """Retention of deleted files in the memory; 7 days by default."""
    max_file_age_ms: int | None = field(default=None, compare=False, repr=False)
    """Maximum age of files that are read and remembered; None: no limit."""
    recursive: bool = False
    """Whether files of subfolders are read."""
    metadata: tuple[str, ...] = ()
    """Columns about a row's file (`file_metadata.COLUMNS`), behind those of the schema."""
    after_commit: str | None = None
    """Treatment of files that a committed snapshot has read: "delete" or "archive"."""
    archive: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path, may_be_pattern=True))
        storage = storage_options(self.path, dict(self.storage_options))
        object.__setattr__(self, "storage_options", storage)
        check_known("format", self.format, FORMATS)
        if self.schema is None and self.format != "parquet":
            raise ConfigurationError(
                f"schema: {self.format} files need one.",
                cure='Give column names and types: schema="id long, at timestamp".',
            )
        check_columns = check_json_columns if self.format == "json" else check_texts
        check_columns(self.schema or "")
        check_nullable(self.schema or "")
        if self.recursive and is_pattern(self.path):
            raise ConfigurationError(
                f"recursive: {self.path!r} is a pattern.",
                cure="Name the folder, or leave recursive out.",
            )
        if self.archive is not None:
            object.__setattr__(self, "archive", absolute(self.archive))
        check_cleaning(self.path, self.schema, self.after_commit, self.archive, self._reads)
        named = () if self.schema is None else columns_in(self.path, self.schema)
        check_metadata(self.metadata, self.schema, named)
        self.rows.check()

    @property
    def rows(self) -> Rows:
        """Reader of its files."""
        # Check header names: columns in another order would be confused.
        defaults = {"enforceSchema": "false"} if self.format == "csv" else {}
        options = {**defaults, **dict(self.options)}
        schema, metadata = self.row_schema(), self.metadata
        return Rows(self.path, self.storage_options, self.format, schema, options, metadata)

    def describe(self) -> dict[str, str]:
        return {
            "kind": "files",
            "path": self.path,
            "format": self.format,
            "schema": self.schema or "",
        }

    def row_schema(self) -> str | None:
        return None if self.schema is None else with_metadata(self.schema, self.metadata)

    def reads_output_of(self, sink: Sink) -> bool:
        return isinstance(sink, FilesSink) and (
            self._reads(sink.an_output)
            or (scheme_of(self.path) == "file" and realpath(self.path) == realpath(sink.path))
        )

    def _reads(self, file: str) -> bool:
        """Returns whether it would read a file of this path."""
        if self.recursive:
            is_local = scheme_of(self.path) == "file"
            real = realpath if is_local else str
            return is_inside(real(file), real(self.path))
        pattern = self.path if is_pattern(self.path) else f"{glob.escape(self.path)}/*"
        return bool(found_in(pattern, [InputFile(0, file, 0)]).files)

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> FilesSource:
        check_reachable(self.path, job, stage, is_reachable=on_one_host or self.shared)
        if self.archive is not None and scheme_of(self.archive) == "file":
            make_archive(self.archive, self._place().folder_url, job, stage)
        if self.schema is not None:
            return self
        found = schema_of_first(self._place(), job, stage)
        return replace(self, schema=with_columns(self.path, found), must_fit=True)

    def _place(self) -> InputPlace:
        return open_input(self.path, self.storage_options, self.recursive)

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> FilesReader:
        kind = FilesReader if self.after_commit is None else CleaningReader
        return kind(self, job, stage, bad_rows)


@dataclass(frozen=True)
class Found:
    """Result of a poll."""

    files: Compared
    row_size: RowSize | None = None
    """Row size of the first unread file, if none is known yet."""


@dataclass
class FilesReader(SourceReader):
    """Lists, plans and remembers files on the driver."""

    rereads_input = True
    skips_columns = True

    source: FilesSource
    job: str
    stage: str
    bad_rows: BadRowRule | None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    _there: frozenset[str] | None = None
    """Paths of the last accepted listing."""
    _journal: list[InputFile] = field(default_factory=list)
    _last: InputFile | None = None
    _without_checksum: frozenset[str] = frozenset()
    """Paths of the split that is being read; `verify` detects their changes."""
    _columns: StructType | None = None
    """Used columns; None if unknown."""

    def __post_init__(self) -> None:
        source = self.source
        self._folder = InputFolder(
            source.path,
            source.storage_options,
            source.format,
            self.job,
            self.stage,
            source.recursive,
        )
        self._place = self._folder.place
        self._read = FileMemory(source.remember_ms, source.max_file_age_ms)
        self._recognition = Recognition(self._folder, self._read)
        self._waiting = WaitingFiles(self._folder, source.rows.can_be_cut)
        with suppress(SourceUnavailableError):  # `poll` raises it, where the job can wait
            self._folder.files()

    # --- listings -------------------------------------------------------------------------------

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._waiting.restore(position["bytes_per_row"])
        self._read.restore(position, journal)
        if position["files"] != len(self._read):
            raise SourceError(
                f"the snapshot lists {len(self._read)} files read, its position "
                f"{position['files']}.",
                job=self.job,
                stage=self.stage,
            )
        self._warn_of_another_folder()

    def _warn_of_another_folder(self) -> None:
        """Warns if none of the files read is in the folder: a moved folder would be read again."""
        folder = os.path.join(self._place.folder_url, "")
        if not self._read or any(file.path.startswith(folder) for file in self._read):
            return
        if waiting := len(self._folder.files()):
            _logger.warning(
                "job %r, stage %r: none of the %d files read so far, such as %s, was in %s: the %d "
                "files there are read as new ones. If the folder has moved, stop the job, put a "
                "symbolic link at the old place, and let the source name that.",
                self.job,
                self.stage,
                len(self._read),
                next(iter(self._read)).path,
                folder,
                waiting,
            )

    def poll(self) -> Found:
        found = self._recognition.compare(
            self._folder.files(self._read.read_whole),
            self._without_checksum,
            self._waiting.bytes_per_row,
        )
        return Found(found, self._row_size_of_first(found.unread))

    def _row_size_of_first(self, unread: Sequence[InputFile]) -> RowSize | None:
        if not self._waiting.needs_row_size:
            return None
        first = next((f for f in unread if f.size and self._read.get(f.path) is None), None)
        return None if first is None else row_size(self._place, first, self.source.format)

    def accept(self, found: Found) -> None:
        self._there = found.files.there
        for again in found.files.recognised:
            known = self._read.get(again.path)
            if known is not None and known != again:
                self._remember(replace(again, read_to=known.read_to))  # compare only once
        self._waiting.replace(self._unread(found.files.unread))
        if found.row_size is not None:
            self._waiting.take_row_size(found.row_size)

    def _unread(self, files: Iterable[InputFile]) -> Iterator[Slice]:
        for file in files:
            known = self._read.get(file.path)
            if known is None:
                if not self._read.is_passed(file):
                    yield Slice.whole(file)
            elif known.read_to is not None:
                yield Slice(known if known == file else file, known.read_to, file.size)

    def _remember(self, file: InputFile) -> None:
        self._read.put(file)
        self._journal.append(file)

    def waiting(self) -> Lag:
        return self._waiting.lag()

    # --- epochs ---------------------------------------------------------------------------------

    def plan(self, max_rows: int) -> tuple[Slice, ...] | None:
        taken = self._waiting.take(max_rows)
        if not taken:
            return None
        for file in (part.file for part in taken if part.begin == 0):
            self._check_columns(file)
        for part in taken:
            self._remember(part.read())
        self._without_checksum = frozenset(part.path for part in taken)
        self._last = taken[-1].file
        return taken

    @cached_property
    def _named(self) -> tuple[str, ...]:
        """Columns that the folders of the source's path name. Found once: it asks the file system
        whether a path is a pattern, and a split has many files."""
        return columns_in(self.source.path, self.source.schema or "")

    def _check_columns(self, file: InputFile) -> None:
        source, schema = self.source, self.source.schema
        assert schema is not None
        if columns := not_named(file.path, self._named, schema):
            raise self._folder.refused(
                f"the column {', '.join(columns)} is the name of a folder, which the source does "
                "not read.",
                file.path,
                f"Read a pattern that names it: {columns[0]}=* in place of *. Or leave it out of "
                "schema=.",
            )
        if source.must_fit:
            own = without(schema, self._named)
            with self._folder.errors_named(file.path):
                passes = self.bad_rows is not None
                check_schema(self._place, file, own, self.job, self.stage, passes_damaged=passes)

    def frame(self, spark: SparkSession, split: tuple[Slice, ...]) -> SourceFrame:
        return self._divided(self._rows.frame(spark, split, with_file=self.bad_rows is not None))

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Sequence[Slice]], partitions: int
    ) -> SourceFrame | None:
        rows = self._rows.prepared_frame(spark, split, with_file=self.bad_rows is not None)
        return None if rows is None else self._divided(rows)

    def _divided(self, frame: DataFrame) -> SourceFrame:
        return divided(frame, self.bad_rows, self.stage)

    def split_parameters(self, split: tuple[Slice, ...]) -> SplitParameters | None:
        is_text = self.source.format != "parquet"
        if is_text and not all(is_readable(part.path) for part in split):
            return None
        return SplitParameters(split)

    def read_only(self, columns: StructType) -> None:
        # A dead letter has the whole row. CSV columns are matched by position.
        if self.source.format != "csv" and self.bad_rows is None:
            self._columns = columns

    @cached_property
    def _rows(self) -> Rows:
        """Reader, configured once per execution."""
        rows = self.source.rows
        if self.source.format == "parquet":
            return replace(rows, columns=self._columns)
        if self.bad_rows is not None and rows.schema is not None:
            schema, options = forgiving(rows.schema)
            return replace(rows, schema=schema, options={**rows.options, **options})
        options = {**rows.options, "mode": "FAILFAST"}
        return replace(rows, options=options, columns=self._columns)

    def verify(self, split: tuple[Slice, ...], rows: int) -> None:
        if not self._place.reads_what_was_planned:
            self.check_input(split)
        self._waiting.measure(split, rows)

    def check_input(self, split: tuple[Slice, ...]) -> None:
        for part in split:
            self._folder.check(part.file, self._waiting.bytes_per_row)

    def locate_bad_row(self, spark: SparkSession, split: tuple[Slice, ...]) -> str | None:
        return self.source.rows.first_bad(spark, split)

    def locate_row(
        self,
        spark: SparkSession,
        split: tuple[Slice, ...],
        is_meant: Callable[[DataFrame], Column],
    ) -> str | None:
        return self.source.rows.first_where(spark, split, is_meant)

    # --- snapshots ------------------------------------------------------------------------------

    def position(self) -> dict[str, Any]:
        return {
            "files": len(self._read),
            "last": self._last.path if self._last else None,
            "bytes_per_row": round(self._waiting.bytes_per_row, 3),
            **self._read.marks(),
        }

    def take_journal(self) -> pa.Table | None:
        if not self._journal:
            return None
        newest = {file.path: file for file in self._journal}  # newest `read_to`
        taken, self._journal = [self._with_checksum(file) for file in newest.values()], []
        for file in taken:
            self._read.put(file)
        self._without_checksum = frozenset()
        return self._read.as_table(taken)

    def _with_checksum(self, file: InputFile) -> InputFile:
        """Reads the content while Spark reads it, too; `verify` detects changes meanwhile."""
        if file.checksum is None:
            with suppress(OSError):  # `verify` raises it; else no comparison by content
                return replace(file, checksum=self._place.checksum(file))
        return file

    def take_gone(self) -> Sequence[Mapping[str, Any]]:
        gone = self._recognition.gone(self._read.unfinished)
        for file in gone:
            self._remember(replace(file, read_to=None))
        rows: list[dict[str, Any]] = self._read.as_table(gone).to_pylist()
        return rows

    def fates(self, journaled: Sequence[Mapping[str, Any]]) -> list[InputFate]:
        there = {file.path for file in self._folder.files()} if journaled else set()
        fates = []
        for file in map(file_of_row, journaled):
            otherwise = InputFate.WAITING if file.path in there else InputFate.GONE
            fates.append(InputFate.RESTORED if self._has_read(file) else otherwise)
        return fates

    def _has_read(self, file: InputFile) -> bool:
        """Returns whether the position covers a journal entry."""
        known = self._read.get(file.path)
        if known is None or known.read_to is None:
            return known is not None
        return file.read_to is not None and file.read_to <= known.read_to

    def shown(self, journaled: Mapping[str, Any]) -> str:
        return file_of_row(journaled).shown(self._waiting.bytes_per_row)

    def whole_journal(self, parts: Collection[int], undecided: Collection[str]) -> pa.Table:
        if self._there is not None:
            first = self._waiting.first
            before = None if first is None else mark_of(first.file)
            self._read.sweep(parts, self._there, self.now_ms(), keep=undecided, before=before)
        return self._read.table(parts)


@dataclass
class CleaningReader(FilesReader):
    """A reader whose files are cleaned up once a committed snapshot has them."""

    acknowledges: ClassVar[Acknowledges] = Acknowledges.MESSAGES

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cleaning = InputCleaning(self._folder, self.source.archive)

    def unacknowledged(self) -> Mapping[str, Any]:
        return handles_of(self._read.get(path) for path in self._there or ())

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """Ignored: the journal has the files, and `acknowledge` follows."""

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        self._cleaning.clean(messages)
