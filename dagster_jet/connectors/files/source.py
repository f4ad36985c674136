"""Files as a replayable source: a folder into which finished files are moved.

A file is read once, in order of (modification time, name): whole, or in byte ranges where it is too
large for an epoch (`slices`). Which files were read, and how far, is part of every snapshot, with
size, time and checksum, so that a file that arrives late is not missed and one that changes after
it was read is an error instead of a silent difference. Another time alone is no change: then the
content is compared. Hidden and temporary names are ignored: write elsewhere, then rename.

Files may be deleted once a committed snapshot has read them (`Jet.consumed_files`), not before: one
that vanishes earlier cannot be read again after a crash, and is an `InputLostError`. What was
deleted is remembered for a time (`memory`).

A file is known by its absolute path, however the source spells it; symbolic links are not followed,
so that a link at the old place keeps the paths of a folder that has moved.

At-least-once: after a restart the files of the epochs since the last snapshot are read again.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.contract import (
    BadRowRule,
    InputFate,
    Lag,
    SourceFrame,
    SourceReader,
    SplitParameters,
)
from dagster_jet.connectors.files.bad_rows import (
    CORRUPT_COLUMN,
    FAULT_COLUMN,
    FILE_COLUMN,
    forgiving,
)
from dagster_jet.connectors.files.cluster import check_reachable
from dagster_jet.connectors.files.memory import FileMemory, file_of_row, mark_of
from dagster_jet.connectors.files.parquet_schema import check_schema, schema_of_first
from dagster_jet.connectors.files.places.location import (
    StorageOptions,
    absolute,
    storage_options,
)
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile, InputPlace, Listing
from dagster_jet.connectors.files.row_size import RowSize, row_size
from dagster_jet.connectors.files.rows import Rows
from dagster_jet.connectors.files.slices import Slice, cut
from dagster_jet.connectors.files.text_lines import is_readable
from dagster_jet.core.ddl import quoted_name
from dagster_jet.core.durations import in_words
from dagster_jet.errors import (
    ConfigurationError,
    InputLostError,
    SourceError,
    SourceUnavailableError,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)

FORMATS = ("json", "csv", "parquet")
REASON_COLUMN = "__reason"
_OURS = frozenset({CORRUPT_COLUMN, FILE_COLUMN, FAULT_COLUMN})
REMEMBER_MS = 7 * 24 * 3_600_000
_ABOUT = 1.05
"""So many times what was asked for is still about that much."""
_FIRST_GUESS_BYTES_PER_ROW = 100.0
_FIRST_GUESS_INFLATION = {"parquet": 4.0}


@dataclass(frozen=True)
class FilesSource:
    """A folder, or a glob pattern, of JSON lines, CSV or Parquet files.

    Args:
        path: local folder or pattern, made absolute at once; a folder that exists under this very
            name is no pattern.
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
    """A local folder is the same one on every machine of a cluster."""
    asset_key: tuple[str, ...] = ()
    """The asset that it reads, in an orchestrator that knows it; () if none."""
    must_fit: bool = field(default=False, compare=False, repr=False)
    """The schema is the first file's, and every other file must have the same columns."""
    remember_ms: int = field(default=REMEMBER_MS, compare=False, repr=False)
    """For how long a file that was read and is gone is remembered."""
    horizon_ms: int | None = field(default=None, compare=False, repr=False)
    """Older files are neither read nor remembered; None: all are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", absolute(self.path, may_be_pattern=True))
        storage = storage_options(self.path, dict(self.storage_options))
        object.__setattr__(self, "storage_options", storage)
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"format: {self.format!r} is unknown.", cure=f"Use one of {', '.join(FORMATS)}."
            )
        if self.schema is None and self.format != "parquet":
            raise ConfigurationError(
                f"schema: {self.format} files need one.",
                cure='Give column names and types: schema="id long, at timestamp".',
            )

        self.rows.check()

    @property
    def rows(self) -> Rows:
        """How its files are read."""
        # By name: columns in another order would be taken for each other.
        defaults = {"enforceSchema": "false"} if self.format == "csv" else {}
        options = {**defaults, **dict(self.options)}
        return Rows(self.path, self.storage_options, self.format, self.schema, options)

    def describe(self) -> dict[str, str]:
        return {
            "kind": "files",
            "path": self.path,
            "format": self.format,
            "schema": self.schema or "",
        }

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> FilesSource:
        check_reachable(self.path, job, stage, is_reachable=on_one_host or self.shared)
        if self.schema is not None:
            return self
        return replace(self, schema=schema_of_first(self._place(), job, stage), must_fit=True)

    def _place(self) -> InputPlace:
        return open_input(self.path, self.storage_options)

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> FilesReader:
        return FilesReader(self, job, stage, bad_rows)


@dataclass(frozen=True)
class Found:
    """What a poll has found."""

    unread: Sequence[InputFile]
    """Files that were not read, or not to their end, in the order in which they are read."""
    recognised: Sequence[InputFile]
    """Files that were read, and have another time by now and the same content."""
    there: frozenset[str]
    """The paths of all files."""
    row_size: RowSize | None = None
    """Of the first one, where nothing is known of the rows yet."""


@dataclass
class FilesReader(SourceReader):
    """The driver's side: lists, plans, remembers."""

    source: FilesSource
    job: str
    stage: str
    bad_rows: BadRowRule | None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    _waiting: deque[Slice] = field(default_factory=deque)
    """What is left of each file."""
    _waiting_bytes: int = 0
    _there: frozenset[str] | None = None
    """The paths of the last listing that was accepted."""
    _journal: list[InputFile] = field(default_factory=list)
    _last: InputFile | None = None
    _bytes_per_row: float = _FIRST_GUESS_BYTES_PER_ROW
    _is_measured: bool = False
    """Rows were read, or are known from a snapshot: a look at one file says less."""
    _has_row_size: bool = False
    _inflation: float = 1.0
    """From bytes in files to bytes in memory."""
    _has_named_subfolders: bool = False
    _listed: frozenset[str] | None = None
    """The paths of the last listing. Only `poll` uses it, and the next."""
    _was_new: frozenset[str] = frozenset()
    """The paths in it that were certainly new."""
    _without_checksum: frozenset[str] = frozenset()
    """Paths of the split that is being read: `verify` says whether they have changed."""
    _columns: StructType | None = None
    """All that is looked at; None: nobody has said so."""

    def __post_init__(self) -> None:
        self._read = FileMemory(self.source.remember_ms, self.source.horizon_ms)
        self._place: InputPlace = open_input(self.source.path, self.source.storage_options)
        self._inflation = _FIRST_GUESS_INFLATION.get(self.source.format, 1.0)
        with suppress(SourceUnavailableError):  # `poll` tells, where the job can wait
            self._list()

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._bytes_per_row = position.get("bytes_per_row", _FIRST_GUESS_BYTES_PER_ROW)
        self._is_measured = "bytes_per_row" in position
        rows = self._read.restore(position, journal)
        # What was read under two spellings is one file now.
        if position["files"] not in (len(self._read), rows):
            raise SourceError(
                f"the snapshot lists {len(self._read)} files read, its position "
                f"{position['files']}.",
                job=self.job,
                stage=self.stage,
            )
        self._warn_of_another_folder()

    def _warn_of_another_folder(self) -> None:
        """A folder that has moved would be read again, whole; a new one is meant to be read."""
        folder = os.path.join(self._place.folder_url, "")
        if not self._read or any(file.path.startswith(folder) for file in self._read):
            return
        if waiting := len(self._list()):
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
        listed = self._list()
        unread: list[InputFile] = []
        recognised: list[InputFile] = []
        passed: list[InputFile] = []
        for file in listed:
            known = self._read.get(file.path)
            if known is None:
                (passed if self._read.is_passed(file) else unread).append(file)
                continue
            if known.read_to is not None:
                unread.append(file)
            if known != file and file.path not in self._without_checksum:
                recognised.append(self._recognise(known, file))
        self._name_late(passed)
        unread = sorted(filter(self._is_new, unread), key=mark_of)
        self._was_new = frozenset(file.path for file in unread)
        self._listed = frozenset(file.path for file in listed)
        if gone := self._gone(self._read.unfinished - self._listed):
            raise self._input_lost(gone[0])
        return Found(unread, recognised, self._listed, self._row_size_of_first(unread))

    def _gone(self, paths: Collection[str]) -> list[InputFile]:
        """Files that were read to a part and are not there, of these."""
        gone = []
        for path in sorted(paths):
            known = self._read.get(path)
            with self._errors_named(path):
                if known is not None and known.read_to is not None:
                    gone += [] if self._place.find(path) else [known]
        return gone

    def _input_lost(self, file: InputFile) -> InputLostError:
        return InputLostError(
            f"the file was taken away while it was read: {file.shown(self._bytes_per_row)}.",
            job=self.job,
            stage=self.stage,
            position=file.path,
            cure="Put it back as it was (cp -p) and start again; without it the rest of its rows "
            "is missing. Delete files when a committed snapshot has them whole "
            "(Jet.consumed_files()).",
        )

    def take_gone(self) -> Sequence[Mapping[str, Any]]:
        gone = self._gone(self._read.unfinished)
        for file in gone:
            self._remember(replace(file, read_to=None))
        rows: list[dict[str, Any]] = self._read.as_table(gone).to_pylist()
        return rows

    def _is_new(self, file: InputFile) -> bool:
        """Whether it certainly was not read before it was forgotten.

        Raises:
            SourceError: nobody knows.
        """
        if not self._read.may_have_been_read(file) or file.path in self._was_new:
            return True
        if self._read.get(file.path) is not None:
            return True  # it is being read
        with self._errors_named(file.path):
            if self._place.find(file.path) is None:
                return False  # a listing that was late
        remembered = in_words(self.source.remember_ms)
        raise SourceError(
            f"the file may have been read before: it is of {_when(file.mtime_ns)}, and files as "
            f"old as that were read, were gone for {remembered}, and are forgotten.",
            job=self.job,
            stage=self.stage,
            position=file.path,
            cure="If its rows are new, give it a new time (touch). If it came back, from a copy "
            "for example, take it away. sources.files(remember=...) says how long files are "
            "remembered.",
        )

    def _name_late(self, passed: Sequence[InputFile]) -> None:
        """Of those that the horizon leaves out: which have come since the last listing."""
        listed = self._listed
        late = [] if listed is None else [file.path for file in passed if file.path not in listed]
        if late:
            assert self.source.horizon_ms is not None
            _logger.warning(
                "job %r, stage %r: %d files are older than the horizon of %s and are not read, "
                "such as %s. Give them a new time (touch) if they are to be.",
                self.job,
                self.stage,
                len(late),
                in_words(self.source.horizon_ms),
                min(late),
            )

    def _row_size_of_first(self, unread: Sequence[InputFile]) -> RowSize | None:
        if self._has_row_size:
            return None
        first = next((f for f in unread if f.size and self._read.get(f.path) is None), None)
        return None if first is None else row_size(self._place, first, self.source.format)

    def accept(self, found: Found) -> None:
        self._there = found.there
        for again in found.recognised:
            known = self._read.get(again.path)
            if known is not None and known != again:
                self._remember(replace(again, read_to=known.read_to))  # compared once
        self._waiting = deque(self._unread(found.unread))
        self._waiting_bytes = sum(rest.size for rest in self._waiting)
        if found.row_size is not None:
            self._has_row_size = True
            self._inflation = found.row_size.in_memory / found.row_size.in_file
            if not self._is_measured:
                self._bytes_per_row = max(1.0, found.row_size.in_file)

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

    def _recognise(self, known: InputFile, file: InputFile) -> InputFile:
        """A file that was read has another time: `touch`, or a copy that was put back."""
        cure = "Put the old content back, and the new rows into a file of their own: files must be "
        cure += "finished before they are moved in."
        if known.size != file.size:
            now = f"now {file.size} bytes"
        elif known.etag:
            if known.etag == file.etag:
                return file
            now = f"other content, by its ETag, at {_when(file.mtime_ns)}"
        elif known.checksum is None:
            now = f"at {_when(file.mtime_ns)}, it was of {_when(known.mtime_ns)}"
            cure += " If it is the old content, give it its old time (touch -d): the snapshot was "
            cure += "taken without checksums."
        else:
            with self._errors_named(file.path):
                if self._place.checksum(file) == known.checksum:
                    return replace(file, checksum=known.checksum)
            now = f"other content, at {_when(file.mtime_ns)}"
        raise SourceError(
            f"the file was read with {known.size} bytes and has changed since ({now}).",
            job=self.job,
            stage=self.stage,
            position=file.path,
            cure=cure,
        )

    def waiting(self) -> Lag:
        waiting_bytes = self._waiting_bytes
        return Lag(
            items=max(len(self._waiting), int(waiting_bytes / self._bytes_per_row)),
            details={"files": len(self._waiting), "bytes": waiting_bytes},
            bytes=int(waiting_bytes * self._inflation),
        )

    def plan(self, max_rows: int) -> tuple[Slice, ...] | None:
        if not self._waiting:
            return None
        taken = self._take(max_rows * self._bytes_per_row)
        self._waiting_bytes -= sum(part.size for part in taken)
        if self.source.must_fit and self.source.schema is not None:
            for file in (part.file for part in taken if part.begin == 0):
                with self._errors_named(file.path):
                    check_schema(self._place, file, self.source.schema, self.job, self.stage)
        for part in taken:
            self._remember(part.read())
        self._without_checksum = frozenset(part.path for part in taken)
        self._last = taken[-1].file
        return tuple(taken)

    def _take(self, budget: float) -> list[Slice]:
        """Whole files of about `budget` bytes together, at least one; or a part of one file."""
        first = self._waiting[0]
        with self._errors_named(first.path):
            part = cut(self._place, first, budget, self.source.format) if self._cuts else first
        self._waiting.popleft()
        if part.end < first.end:
            self._waiting.appendleft(replace(first, begin=part.end))
        taken = [part]
        # Two files of equal rows never have twice the bytes of one of them.
        budget *= _ABOUT
        budget -= part.size
        if part.is_whole:
            while self._waiting and self._waiting[0].is_whole and budget >= self._waiting[0].size:
                taken.append(self._waiting.popleft())
                budget -= taken[-1].size
        return taken

    @cached_property
    def _cuts(self) -> bool:
        return self.source.rows.can_be_cut

    def frame(self, spark: SparkSession, split: tuple[Slice, ...]) -> SourceFrame:
        return self._divided(self._rows.frame(spark, split, with_file=self.bad_rows is not None))

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], Sequence[Slice]], partitions: int
    ) -> SourceFrame | None:
        rows = self._rows.prepared_frame(spark, split, with_file=self.bad_rows is not None)
        return None if rows is None else self._divided(rows)

    def _divided(self, frame: DataFrame) -> SourceFrame:
        """Into good rows and dead letters, if there are to be any."""
        from pyspark.sql import functions as F

        rule = self.bad_rows
        if rule is None:
            return SourceFrame(frame)
        columns = [quoted_name(name) for name in frame.columns if name not in _OURS]
        reason, raw = F.col(FAULT_COLUMN), F.to_json(F.struct(*columns))
        if CORRUPT_COLUMN in frame.columns:
            no_row = F.when(F.col(CORRUPT_COLUMN).isNotNull(), "does not fit the schema")
            reason, raw = F.coalesce(reason, no_row), F.coalesce(CORRUPT_COLUMN, raw)
        for column in rule.required:
            is_null = F.when(F.col(quoted_name(column)).isNull(), f"{column} is null")
            reason = F.coalesce(reason, is_null)
        shared = frame.withColumn(REASON_COLUMN, reason)
        dead_letters = shared.where(F.col(REASON_COLUMN).isNotNull()).select(
            F.lit(self.stage).alias("source"),
            F.col(FILE_COLUMN).alias("position"),
            F.col(REASON_COLUMN).alias("reason"),
            F.when(F.col(FAULT_COLUMN).isNull(), raw).alias("raw"),
        )
        good = shared.where(F.col(REASON_COLUMN).isNull()).select(*columns)
        return SourceFrame(good, dead_letters, shared)

    def split_parameters(self, split: tuple[Slice, ...]) -> SplitParameters | None:
        is_text = self.source.format != "parquet"
        if is_text and not all(is_readable(part.path) for part in split):
            return None
        return SplitParameters(split)

    def read_only(self, columns: StructType) -> None:
        # A dead letter is the whole row. CSV goes by position.
        if self.source.format != "csv" and self.bad_rows is None:
            self._columns = columns

    @cached_property
    def _rows(self) -> Rows:
        """Configured once per execution."""
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
        if rows > 0:
            size = sum(part.size for part in split)
            self._bytes_per_row = max(1.0, 0.5 * self._bytes_per_row + 0.5 * size / rows)
            self._is_measured = self._has_row_size = True

    def check_input(self, split: tuple[Slice, ...]) -> None:
        for file in (part.file for part in split):
            with self._errors_named(file.path):
                found = self._place.find(file.path)
            if found == file:
                continue
            if found is None:
                raise InputLostError(
                    f"the file was taken away before it was read, or while it was: "
                    f"{file.shown(self._bytes_per_row)}.",
                    job=self.job,
                    stage=self.stage,
                    position=file.path,
                    cure="Put it back and start again; without it its rows are missing. Delete "
                    "files when a committed snapshot has them (Jet.consumed_files()).",
                )
            if found.size == file.size:
                raise SourceUnavailableError(
                    "the file was written to, or touched, while it was read.",
                    job=self.job,
                    stage=self.stage,
                    position=file.path,
                    cure="The job restarts from its last snapshot and reads it again.",
                )
            raise SourceError(
                f"the file changed while it was read, from {file.size} to {found.size} bytes.",
                job=self.job,
                stage=self.stage,
                position=file.path,
                cure="Move finished files in; do not append to them.",
            )

    def locate_bad_row(self, spark: SparkSession, split: tuple[Slice, ...]) -> str | None:
        return self.source.rows.first_bad(spark, split)

    def position(self) -> dict[str, Any]:
        return {
            "files": len(self._read),
            "last": self._last.path if self._last else None,
            "bytes_per_row": round(self._bytes_per_row, 3),
            **self._read.marks(),
        }

    def take_journal(self) -> pa.Table | None:
        if not self._journal:
            return None
        newest = {file.path: file for file in self._journal}  # how far it was read by now
        taken, self._journal = [self._with_checksum(file) for file in newest.values()], []
        for file in taken:
            self._read.put(file)
        self._without_checksum = frozenset()
        return self._read.as_table(taken)

    def _with_checksum(self, file: InputFile) -> InputFile:
        """Read while Spark reads it, too. If it changes meanwhile, `verify` says so."""
        if file.checksum is None:
            with suppress(OSError):  # `verify` says that, too, or it is not known again by content
                return replace(file, checksum=self._place.checksum(file))
        return file

    def fates(self, journaled: Sequence[Mapping[str, Any]]) -> list[InputFate]:
        there = {file.path for file in self._list()} if journaled else set()
        fates = []
        for file in map(file_of_row, journaled):
            otherwise = InputFate.WAITING if file.path in there else InputFate.GONE
            fates.append(InputFate.RESTORED if self._has_read(file) else otherwise)
        return fates

    def _has_read(self, file: InputFile) -> bool:
        """As far as the journal says that it was read."""
        known = self._read.get(file.path)
        if known is None or known.read_to is None:
            return known is not None
        return file.read_to is not None and file.read_to <= known.read_to

    def shown(self, journaled: Mapping[str, Any]) -> str:
        return file_of_row(journaled).shown(self._bytes_per_row)

    def whole_journal(self, parts: Collection[int], undecided: Collection[str]) -> pa.Table:
        if self._there is not None:
            first = mark_of(self._waiting[0].file) if self._waiting else None
            self._read.sweep(parts, self._there, self.now_ms(), keep=undecided, before=first)
        return self._read.table(parts)

    def _list(self) -> tuple[InputFile, ...]:
        with self._errors_named(self.source.path):
            try:
                listing = self._place.listing()
            except (FileNotFoundError, NotADirectoryError):
                raise SourceError(
                    f"the source folder {self.source.path!r} does not exist.",
                    job=self.job,
                    stage=self.stage,
                    cure="Create it, or correct the path.",
                ) from None
        if listing.subfolders and not self._has_named_subfolders:
            self._has_named_subfolders = True
            self._name_subfolders(listing)
        return listing.files

    def _name_subfolders(self, listing: Listing) -> None:
        """Once: whoever writes `date=.../part.json` would wait for it for ever."""
        first = min(listing.subfolders)
        _logger.warning(
            "job %r, stage %r: %d subfolders in %s are passed over, such as %s: a source reads "
            "the files of one folder. Name deeper ones by a pattern (%s).",
            self.job,
            self.stage,
            len(listing.subfolders),
            self._place.folder_url,
            first,
            os.path.join(os.path.dirname(first), "*", f"*.{self.source.format}"),
        )

    @contextmanager
    def _errors_named(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SourceUnavailableError(
                f"the file system cannot be read now: {error.strerror or error}.",
                job=self.job,
                stage=self.stage,
                position=error.filename or path,
                cure="Correct the permissions, or bring the file system back; meanwhile the job "
                "restarts from its last snapshot.",
            ) from error


def _when(mtime_ns: int) -> str:
    return datetime.fromtimestamp(mtime_ns / 1e9, timezone.utc).isoformat(" ")
