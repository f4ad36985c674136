"""Files as a replayable source: a folder into which finished files are moved.

A file is read whole, once, in order of (modification time, name). Which files were read is part of
every snapshot, with size, time and checksum, so that a file that arrives late is not missed and one
that changes after it was read is an error instead of a silent difference. Another time alone is no
change: then the content is compared. Hidden and temporary names are ignored: write elsewhere, then
rename.

Files may be deleted once a committed snapshot has read them (`Jet.consumed_files`), not before: one
that vanishes earlier cannot be read again after a crash, and is an `InputLostError`.

A file is known by its absolute path, however the source spells it; symbolic links are not followed,
so that a link at the old place keeps the paths of a folder that has moved.

At-least-once: after a restart the files of the epochs since the last snapshot are read again.
"""

from __future__ import annotations

import glob
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.files.bad_rows import CORRUPT_COLUMN, FILE_COLUMN, first_bad_row
from dagster_jet.connectors.files.checksum import file_checksum
from dagster_jet.connectors.files.places import is_pattern, literally, local_path
from dagster_jet.engine.connector import InputFate, Lag, Rejection, SourceFrame
from dagster_jet.errors import (
    ConfigurationError,
    InputLostError,
    SourceError,
    SourceUnavailableError,
)
from dagster_jet.pipeline.ddl import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_logger = logging.getLogger(__name__)

FORMATS = ("json", "csv", "parquet")
REASON_COLUMN = "__reason"
_IGNORED_SUFFIXES = (".tmp", ".crc", ".inprogress", ".part", "._COPYING_")
_FIRST_GUESS_BYTES_PER_ROW = 100.0


@dataclass(frozen=True)
class FilesTable:
    """A batch table for enrichment: read whole when an execution starts, and anew as often as
    `enrich(refresh=...)` says."""

    path: str
    format: str
    schema: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    asset_key: tuple[str, ...] = ()
    """The asset that this table is, in an orchestrator that knows it; () if none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", local_path(self.path))

    def describe(self) -> dict[str, str]:
        return {"kind": "files", "path": self.path, "format": self.format}

    def frame(self, spark: SparkSession) -> DataFrame:
        if not os.path.exists(self.path):
            raise SourceError(
                f"the table {self.path!r} does not exist.", cure="Create it, or correct the path."
            )
        defaults = {"mode": "FAILFAST"}  # else what does not fit would be null without a word
        if self.format == "csv":
            # By name: columns in another order would be taken for each other.
            defaults |= {"header": "true", "enforceSchema": "false"}
        reader = spark.read.options(**defaults)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        elif self.format == "csv":
            reader = reader.option("inferSchema", "true")
        return reader.options(**dict(self.options)).format(self.format).load(literally(self.path))

    def locate_bad_row(self, spark: SparkSession) -> str | None:
        """Best effort: file, line and text of a row that does not fit."""
        if self.format == "parquet" or self.schema is None:
            return None
        options = {"header": "true", **dict(self.options)}
        return first_bad_row(
            spark, [self.path], format=self.format, schema=self.schema, options=options
        )


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", local_path(self.path, may_be_pattern=True))
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"format: {self.format!r} is unknown.", cure=f"Use one of {', '.join(FORMATS)}."
            )
        if self.schema is None and self.format != "parquet":
            raise ConfigurationError(
                f"schema: {self.format} files need one.",
                cure='Give column names and types: schema="id long, at timestamp".',
            )

    def describe(self) -> dict[str, str]:
        return {
            "kind": "files",
            "path": self.path,
            "format": self.format,
            "schema": self.schema or "",
        }

    def open(self, job: str, stage: str, rejection: Rejection | None) -> FilesReader:
        return FilesReader(self, job, stage, rejection)


@dataclass(frozen=True, order=True)
class InputFile:
    """One finished file as it was when it was planned."""

    mtime_ns: int
    path: str
    size: int
    checksum: int | None = field(default=None, compare=False)
    """Known once it was read; None too in snapshots of 0.1."""

    def shown(self, bytes_per_row: float) -> str:
        return f"{self.path} ({self.size} bytes, about {round(self.size / bytes_per_row)} rows)"


@dataclass
class FilesReader:
    """The driver's side: lists, plans, remembers."""

    source: FilesSource
    job: str
    stage: str
    rejection: Rejection | None
    _read: dict[str, InputFile] = field(default_factory=dict)
    _waiting: list[InputFile] = field(default_factory=list)
    _journal: list[InputFile] = field(default_factory=list)
    _last: InputFile | None = None
    _bytes_per_row: float = _FIRST_GUESS_BYTES_PER_ROW
    _configured: DataFrameReader | None = None
    _told_of_subfolders: bool = False

    def __post_init__(self) -> None:
        with suppress(SourceUnavailableError):  # `poll` tells, where the job can restart
            self._list()

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._bytes_per_row = position.get("bytes_per_row", _FIRST_GUESS_BYTES_PER_ROW)
        rows = journal.to_pylist() if journal is not None else []
        for row in rows:
            file = _of_row(row)
            self._read.setdefault(file.path, file)  # the newest rows come first
        # What was read under two spellings is one file now.
        if position["files"] not in (len(self._read), len(rows)):
            raise SourceError(
                f"the snapshot lists {len(self._read)} files read, its position "
                f"{position['files']}.",
                job=self.job,
                stage=self.stage,
            )
        self._warn_of_another_folder()

    def _warn_of_another_folder(self) -> None:
        """A folder that has moved would be read again, whole; a new one is meant to be read."""
        folder = os.path.join(_folder_of(self.source.path), "")
        if not self._read or any(path.startswith(folder) for path in self._read):
            return
        if waiting := len(self._list()):
            _logger.warning(
                "job %r, stage %r: none of the %d files read so far, such as %s, was in %s: the %d "
                "files there are read as new ones. If the folder has moved, stop the job, put a "
                "symbolic link at the old place, and let the source name that.",
                self.job,
                self.stage,
                len(self._read),
                next(iter(self._read)),
                folder,
                waiting,
            )

    def poll(self) -> Lag:
        listed = self._list()
        for file in listed:
            known = self._read.get(file.path)
            if known is not None and known != file:
                self._recognise(known, file)
        self._waiting = sorted(f for f in listed if f.path not in self._read)
        return self.waiting()

    def _recognise(self, known: InputFile, file: InputFile) -> None:
        """A file that was read has another time: `touch`, or a copy that was put back."""
        cure = "Put the old content back, and the new rows into a file of their own: files must be "
        cure += "finished before they are moved in."
        if known.size != file.size:
            now = f"now {file.size} bytes"
        elif known.checksum is None:
            now = f"at {_when(file.mtime_ns)}, it was of {_when(known.mtime_ns)}"
            cure += " If it is the old content, give it its old time (touch -d): the snapshot was "
            cure += "taken without checksums."
        else:
            with self._errors_named(file.path):
                if file_checksum(file.path) == known.checksum:
                    self._read[file.path] = again = replace(file, checksum=known.checksum)
                    self._journal.append(again)  # so that it is not compared at every start
                    return
            now = f"other content, at {_when(file.mtime_ns)}"
        raise SourceError(
            f"the file was read with {known.size} bytes and has changed since ({now}).",
            job=self.job,
            stage=self.stage,
            position=file.path,
            cure=cure,
        )

    def waiting(self) -> Lag:
        waiting_bytes = sum(f.size for f in self._waiting)
        return Lag(
            items=max(len(self._waiting), int(waiting_bytes / self._bytes_per_row)),
            details={"files": len(self._waiting), "bytes": waiting_bytes},
        )

    def plan(self, max_rows: int) -> tuple[InputFile, ...] | None:
        if not self._waiting:
            return None
        budget = max_rows * self._bytes_per_row
        taken: list[InputFile] = []
        while self._waiting and (not taken or budget >= self._waiting[0].size):
            file = self._waiting.pop(0)
            budget -= file.size
            taken.append(file)
        for file in taken:
            self._read[file.path] = file
        self._journal.extend(taken)
        self._last = taken[-1]
        return tuple(taken)

    def frame(self, spark: SparkSession, split: tuple[InputFile, ...]) -> SourceFrame:
        from pyspark.sql import functions as F

        frame = self._spark_reader(spark).load([literally(file.path) for file in split])
        if not self._sets_rejects_aside or self.rejection is None:
            return SourceFrame(frame)
        columns = [quoted_name(name) for name in frame.columns if name != CORRUPT_COLUMN]
        reason = F.when(F.col(CORRUPT_COLUMN).isNotNull(), "does not fit the schema")
        for column in self.rejection.required:
            reason = reason.when(F.col(quoted_name(column)).isNull(), f"{column} is null")
        shared = frame.withColumn(FILE_COLUMN, F.col("_metadata.file_path"))
        shared = shared.withColumn(REASON_COLUMN, reason)
        rejects = shared.where(F.col(REASON_COLUMN).isNotNull()).select(
            F.lit(self.stage).alias("source"),
            F.col(FILE_COLUMN).alias("position"),
            F.col(REASON_COLUMN).alias("reason"),
            F.coalesce(CORRUPT_COLUMN, F.to_json(F.struct(*columns))).alias("raw"),
        )
        good = shared.where(F.col(REASON_COLUMN).isNull()).select(*columns)
        return SourceFrame(good, rejects, shared)

    @property
    def _sets_rejects_aside(self) -> bool:
        return self.rejection is not None and self.source.format != "parquet"

    def _spark_reader(self, spark: SparkSession) -> DataFrameReader:
        """Configured once per execution: every option is a call into the JVM."""
        if self._configured is None:
            reader = spark.read.options(**dict(self.source.options)).format(self.source.format)
            schema = self.source.schema
            if self._sets_rejects_aside:
                schema = f"{schema}, {CORRUPT_COLUMN} string"
                reader = reader.option("columnNameOfCorruptRecord", CORRUPT_COLUMN)
            elif self.source.format != "parquet":
                reader = reader.option("mode", "FAILFAST")
            self._configured = reader.schema(schema) if schema is not None else reader
        return self._configured

    def verify(self, split: tuple[InputFile, ...], rows: int) -> None:
        self.check_input(split)
        if rows > 0:
            size = sum(file.size for file in split)
            self._bytes_per_row = max(1.0, 0.5 * self._bytes_per_row + 0.5 * size / rows)

    def check_input(self, split: tuple[InputFile, ...]) -> None:
        for file in split:
            with self._errors_named(file.path):
                found = _stat(file.path)
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

    def locate_bad_row(self, spark: SparkSession, split: tuple[InputFile, ...]) -> str | None:
        if self.source.format == "parquet" or self.source.schema is None:
            return None
        return first_bad_row(
            spark,
            [file.path for file in split],
            format=self.source.format,
            schema=self.source.schema,
            options=dict(self.source.options),
        )

    def position(self) -> dict[str, Any]:
        return {
            "files": len(self._read),
            "last": self._last.path if self._last else None,
            "bytes_per_row": round(self._bytes_per_row, 3),
        }

    def take_journal(self) -> pa.Table | None:
        if not self._journal:
            return None
        taken, self._journal = [self._with_checksum(file) for file in self._journal], []
        self._read.update((file.path, file) for file in taken)
        return _as_table(taken)

    def _with_checksum(self, file: InputFile) -> InputFile:
        """Read while Spark reads it, too. If it changes meanwhile, `verify` says so."""
        if file.checksum is None:
            with suppress(OSError):  # `verify` says that, too, or it is not known again by content
                return replace(file, checksum=file_checksum(file.path))
        return file

    def fates(self, journaled: Sequence[Mapping[str, Any]]) -> list[InputFate]:
        there = {file.path for file in self._list()} if journaled else set()
        fates = []
        for file in map(_of_row, journaled):
            otherwise = InputFate.WAITING if file.path in there else InputFate.GONE
            fates.append(InputFate.RESTORED if file.path in self._read else otherwise)
        return fates

    def shown(self, journaled: Mapping[str, Any]) -> str:
        return _of_row(journaled).shown(self._bytes_per_row)

    def whole_journal(self) -> pa.Table:
        return _as_table(list(self._read.values()))

    def take_lost(self) -> int:
        return 0  # a file that vanishes after it was planned is an error

    def _list(self) -> list[InputFile]:
        with self._errors_named(self.source.path):
            names = [name for name in self._names() if _is_finished(os.path.basename(name))]
            files = [_stat(name) for name in names]
        if None in files and not self._told_of_subfolders:
            self._tell_of_subfolders([n for n, f in zip(names, files, strict=True) if f is None])
        return [file for file in files if file is not None]

    def _tell_of_subfolders(self, no_files: list[str]) -> None:
        """Once: whoever writes `date=.../part.json` would wait for it for ever."""
        subfolders = [name for name in no_files if os.path.isdir(name)]
        if subfolders:
            self._told_of_subfolders = True
            _logger.warning(
                "job %r, stage %r: %d subfolders in %s are passed over, such as %s: a source reads "
                "the files of one folder. Name deeper ones by a pattern (%s).",
                self.job,
                self.stage,
                len(subfolders),
                _folder_of(self.source.path),
                min(subfolders),
                os.path.join(os.path.dirname(min(subfolders)), "*", f"*.{self.source.format}"),
            )

    def _names(self) -> list[str]:
        """Absolute paths, each once."""
        path = self.source.path
        if is_pattern(path):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.scandir(_folder_of(path)).close()  # glob finds nothing where this raises
            return list(dict.fromkeys(map(os.path.abspath, glob.glob(path))))
        try:
            with os.scandir(_folder_of(path)) as entries:
                return [entry.path for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            raise SourceError(
                f"the source folder {path!r} does not exist.",
                job=self.job,
                stage=self.stage,
                cure="Create it, or correct the path.",
            ) from None

    @contextmanager
    def _errors_named(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SourceUnavailableError(
                f"the file system cannot be read now: {error.strerror}.",
                job=self.job,
                stage=self.stage,
                position=error.filename or path,
                cure="Correct the permissions, or bring the file system back; meanwhile the job "
                "restarts from its last snapshot.",
            ) from error


def _folder_of(path: str) -> str:
    """Absolute: the folder, or the innermost one that a pattern cannot leave."""
    if is_pattern(path):
        while glob.has_magic(path):
            path = os.path.dirname(path)
    return os.path.abspath(path)


def _is_finished(name: str) -> bool:
    return not name.startswith((".", "_")) and not name.endswith(_IGNORED_SUFFIXES)


def _stat(path: str) -> InputFile | None:
    """None where there is no file (any more)."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return InputFile(status.st_mtime_ns, path, status.st_size)


def _of_row(row: Mapping[str, Any]) -> InputFile:
    """From a journal. Older ones have paths as they were spelled, and no checksums."""
    path = os.path.abspath(row["path"])
    return InputFile(row["mtime_ns"], path, row["size"], row.get("checksum"))


def _when(mtime_ns: int) -> str:
    return datetime.fromtimestamp(mtime_ns / 1e9, timezone.utc).isoformat(" ")


def _as_table(files: list[InputFile]) -> pa.Table:
    return pa.table(
        {
            "path": pa.array([f.path for f in files], pa.string()),
            "size": pa.array([f.size for f in files], pa.int64()),
            "mtime_ns": pa.array([f.mtime_ns for f in files], pa.int64()),
            "checksum": pa.array([f.checksum for f in files], pa.uint64()),
        }
    )
