"""Rows of files, or parts of files, that Spark's own readers do not reach: read by tasks.

Spark reads `s3a://` only with jars that it does not come with, and a file only whole. Here tasks
open the files themselves, each a slice of the split's bytes, under the condition that the content
is what was planned. Lines are then parsed by Spark's `from_json` and `from_csv`, so that types,
time zones and bad rows are what its readers make of them; Parquet is read by pyarrow.
"""

from __future__ import annotations

import bz2
import csv
import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet

from dagster_jet.connectors.dealt import Dealt, Shares
from dagster_jet.connectors.files.bad_rows import FILE_COLUMN
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.slices import Slice, is_compressed, row_groups
from dagster_jet.core.ddl import quoted_name, split_ddl
from dagster_jet.errors import BadRowError
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES = 64 << 20
"""The most that a task reads of a file; less where it would leave cores idle."""
_LEAST_TASK_BYTES = 2 << 20
_BLOCK_BYTES = 4 << 20
_TASKS_PER_CORE = 2
LINE_COLUMN = "__line"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COMPRESSED: Mapping[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_UNKNOWN = frozenset(
    (
        *("multiline", "linesep", "encoding", "charset", "compression", "recursivefilelookup"),
        *("pathglobfilter", "modifiedbefore", "modifiedafter", "inferschema", "mergeschema"),
    )
)
"""Options of Spark's file readers that mean nothing to its parsers of lines."""


def unknown_options(options: Mapping[str, str]) -> list[str]:
    """Those that files can only be read with by Spark's own readers."""
    return sorted(name for name in options if name.lower() in _UNKNOWN)


def rows_by_tasks(
    spark: SparkSession,
    place: tuple[str, StorageOptions],
    dealt: Dealt[Slice],
    *,
    format: str,
    schema: str,
    options: Mapping[str, str],
) -> DataFrame:
    """Their rows, with the file in `FILE_COLUMN`. Runs nothing.

    Args:
        place: what `open_input` takes.
        dealt: what each task reads.
        schema: as DDL.
        options: as for Spark's reader of this format.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    numbers = spark.range(0, dealt.tasks, 1, dealt.tasks)
    if format == "parquet":
        columns = cast(StructType, StructType.fromDDL(schema))
        read_tables = ReadTables(place, dealt, to_arrow_schema(columns, timezone="UTC"))
        return numbers.mapInArrow(OwnTask(read_tables), columns.add(FILE_COLUMN, "string"))
    given = {name.lower(): value for name, value in options.items()}
    read_lines = ReadLines(
        place,
        dealt,
        comment=given.get("comment") if format == "csv" else None,
        header=_header(schema, given) if format == "csv" else None,
    )
    lines = numbers.mapInArrow(OwnTask(read_lines), f"{FILE_COLUMN} string, {LINE_COLUMN} string")
    parse = F.from_json if format == "json" else F.from_csv
    file_options = {"header", "enforceschema"}
    parsing = {n: v for n, v in options.items() if n.lower() not in file_options}
    parsed = lines.select(FILE_COLUMN, parse(LINE_COLUMN, schema, parsing).alias(LINE_COLUMN))
    fields = [f"{LINE_COLUMN}.{quoted_name(name)}" for name, _ in split_ddl(schema)]
    return parsed.select(*fields, FILE_COLUMN)


@dataclass(frozen=True)
class Header:
    """The first line of each CSV file: what is to be in it, if that is to be looked at."""

    names: tuple[str, ...]
    separator: str
    is_checked: bool


def _header(schema: str, given: Mapping[str, str]) -> Header | None:
    if given.get("header", "false").lower() != "true":
        return None
    bad = given.get("columnnameofcorruptrecord")
    names = tuple(name for name, _ in split_ddl(schema) if name != bad)
    is_checked = given.get("enforceschema", "true").lower() == "false"
    return Header(names, given.get("sep", given.get("delimiter", ",")), is_checked)


def divided(wanted: Sequence[Slice], format: str, parallelism: int) -> Shares[Slice]:
    """Shares of about the same size, one after the other: rows keep the order of the slices."""
    tasks = _TASKS_PER_CORE * parallelism
    even = sum(part.size for part in wanted) // tasks + 1
    size = max(_LEAST_TASK_BYTES, min(even, _TASK_BYTES))
    parts = [part for one in wanted for part in _parts(one, format, size)]
    count = min(tasks, len(parts))
    bounds = [len(parts) * task // count for task in range(count + 1)]
    return Shares(tuple(tuple(parts[first:last]) for first, last in pairwise(bounds)))


def _parts(one: Slice, format: str, size: int) -> Iterator[Slice]:
    if format != "parquet" and one.path.endswith(tuple(_COMPRESSED)):
        yield one
        return
    for begin in range(one.begin, max(one.end, one.begin + 1), size):
        yield Slice(one.file, begin, min(begin + size, one.end))


@dataclass(frozen=True)
class ReadLines:
    """A task: the lines of its slices that are not blank."""

    place: tuple[str, StorageOptions]
    dealt: Dealt[Slice]
    comment: str | None
    header: Header | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in self.dealt.to(batches):
            for part in parts:
                yield from self._read(part)

    def _read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        with open_lines(self.place, part.file) as stream:
            is_first = part.begin == 0
            for block in blocks(stream, part.begin, end_of(part)):
                lines = [line for line in lines_of(block) if self._is_row(line)]
                if is_first and lines:
                    lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
                    if self.header is not None:
                        _check_header(self.header, lines[0], part.file.path)
                        del lines[0]
                    is_first = False
                if lines:
                    yield pa.RecordBatch.from_arrays(
                        [pa.array([part.file.path] * len(lines)), as_text(lines)],
                        [FILE_COLUMN, LINE_COLUMN],
                    )

    def _is_row(self, line: bytes) -> bool:
        return self.comment is None or not line.startswith(self.comment.encode())


@dataclass(frozen=True)
class ReadTables:
    """A task: the row groups of Parquet files that begin in its slices."""

    place: tuple[str, StorageOptions]
    dealt: Dealt[Slice]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for parts in self.dealt.to(batches):
            for part in parts:
                yield from self._read(part)

    def _read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        path = part.file.path
        with open_input(*self.place).open(part.file) as stream:
            try:
                file = pyarrow.parquet.ParquetFile(stream)
                begins = enumerate(row_groups(file.metadata))
                groups = [n for n, at in begins if part.begin <= at < part.end]
                there = [name for name in self.schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(row_groups=groups, columns=there):
                    columns = [self._column(batch, field) for field in self.schema]
                    columns.append(pa.array([path] * batch.num_rows, pa.string()))
                    names = [*self.schema.names, FILE_COLUMN]
                    yield pa.RecordBatch.from_arrays(columns, names)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise BadRowError(
                    f"an input file does not fit what was declared of it: {error}",
                    position=path,
                    cure="Correct the format or the schema, or the file.",
                ) from error

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(field.name)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            return column.cast(field.type, safe=False)  # Spark's times have no finer parts
        return column.cast(field.type)


def is_readable(path: str) -> bool:
    """Tasks can read the text of such a file; some compressed ones only Spark's readers can."""
    return not is_compressed(path) or path.endswith(tuple(_COMPRESSED))


def open_lines(place: tuple[str, StorageOptions], file: InputFile) -> BinaryIO:
    """A file's text, decompressed as its name says."""
    stream = open_input(*place).open(file)
    for suffix, decompressed in _COMPRESSED.items():
        if file.path.endswith(suffix):
            return cast(BinaryIO, decompressed(stream))
    return stream


def end_of(part: Slice) -> int | None:
    """None: of the file, whose size is that of its compressed text."""
    return None if part.path.endswith(tuple(_COMPRESSED)) else part.end


def blocks(stream: BinaryIO, begin: int, end: int | None) -> Iterator[bytes]:
    """Whole lines, those that begin in [begin, end); to the end of the file where it is None."""
    at = begin
    if begin:
        stream.seek(begin - 1)
        at += len(stream.readline()) - 1
    while end is None or at < end:
        block = stream.read(_BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - at))
        if not block:
            return
        if not block.endswith(b"\n"):
            block += stream.readline()
        at += len(block)
        yield block


def lines_of(block: bytes) -> list[bytes]:
    """Those that are not blank."""
    lines = (line.rstrip(b"\r") for line in block.split(b"\n"))
    return [line for line in lines if line.strip()]


def as_text(lines: Sequence[bytes]) -> pa.Array:
    try:
        return pa.array(lines, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # as Spark's readers do it
        return pa.array([line.decode("utf-8", "replace") for line in lines])


def _check_header(header: Header, line: bytes, path: str) -> None:
    if not header.is_checked:
        return
    (found,) = csv.reader([line.decode("utf-8", "replace")], delimiter=header.separator)
    if [name.strip().lower() for name in found] != [name.lower() for name in header.names]:
        raise BadRowError(
            f"the header of the file does not fit the schema: {', '.join(found)}; expected: "
            f"{', '.join(header.names)}.",
            position=path,
            cure="Name the columns of schema= as the file does, in its order; or say that they go "
            'by position: options={"enforceSchema": "true"}.',
        )
