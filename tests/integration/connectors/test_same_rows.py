"""A file has the same rows however it is read: whole or in slices, in a frame that is made for an
epoch or in a prepared one, by Arrow or by Spark, with dead letters or without.

Each case is a file of its own; a thousand of them are read in one job. `JET_PROPERTY_EXAMPLES` says
how many there are of each format, `JET_PROPERTY_FIRST` how many thousands were read in other runs.
"""

from __future__ import annotations

import gzip
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from dagster_jet.connectors.files.bad_rows import (
    CORRUPT_COLUMN,
    FAULT_COLUMN,
    FILE_COLUMN,
    forgiving,
)
from dagster_jet.connectors.files.file_metadata import COLUMNS, with_metadata
from dagster_jet.connectors.files.parquet_footer import row_groups
from dagster_jet.connectors.files.parquet_tasks import is_plainly
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.row_frames import Rows
from dagster_jet.connectors.files.slices import Slice
from dagster_jet.connectors.task_shares import WholeSplit
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import BadRowError
from dagster_jet.spark.errors import translate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = int(os.environ.get("JET_PROPERTY_EXAMPLES", "50"))
BATCH = min(CASES, 1_000)
FIRST = int(os.environ.get("JET_PROPERTY_FIRST", "0"))

Read = Mapping[str, Counter[str]]
"""The rows by file; a bad one, or a bad file, is "bad"."""


def batches(format: str) -> Iterator[random.Random]:
    for number in range(FIRST, FIRST - (-CASES // BATCH)):
        yield random.Random(f"{format} {number}")


def slice_of(path: Path) -> Slice:
    status = path.stat()
    return Slice.whole(InputFile(status.st_mtime_ns, str(path), status.st_size))


def rows_of(frame: DataFrame) -> Read:
    ours = (FILE_COLUMN, FAULT_COLUMN, CORRUPT_COLUMN)
    columns = [quoted_name(name) for name in frame.columns if name not in ours]
    text = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    is_bad = F.col(FAULT_COLUMN).isNotNull()
    if CORRUPT_COLUMN in frame.columns:
        is_bad |= F.col(CORRUPT_COLUMN).isNotNull()
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for file, row in frame.select(FILE_COLUMN, F.when(~is_bad, text).otherwise("bad")).collect():
        found[file][row] += 1
    return found


def texts_of(frame: DataFrame) -> Counter[str]:
    columns = [quoted_name(name) for name in frame.columns]
    text = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    return Counter(row[0] for row in frame.select(text).collect())


def assert_same(schema: str, expected: Read, found: Read, how: str) -> None:
    for path in expected.keys() | found.keys():
        if expected.get(path) != found.get(path):
            body = Path(path).read_bytes()
            pytest.fail(
                f"{how}: {path}\nschema: {schema}\nbytes: {body[:2000]!r}\n"
                f"expected: {expected.get(path)}\nfound: {found.get(path)}"
            )


def cut_at_random(rng: random.Random, whole: Slice) -> Iterator[Slice]:
    if whole.path.endswith(".gz") or not whole.size:
        yield whole
        return
    places = {rng.randrange(whole.size) for _ in range(rng.randrange(4))}
    for begin, end in itertools.pairwise(sorted({0, *places, whole.size})):
        yield Slice(whole.file, begin, end)


def read_all_ways(
    spark: SparkSession,
    folder: Path,
    rng: random.Random,
    format: str,
    schema: str,
    options: Mapping[str, str],
    *,
    by_spark_alone: Mapping[str, str] | None = None,
) -> Read:
    """Reads all files of a folder in every way and asserts that the rows are the same.

    Args:
        by_spark_alone: an option that means nothing, but that Arrow does not know.
    """
    wanted = [slice_of(path) for path in sorted(folder.iterdir())]
    whole, more = (schema, {}) if format == "parquet" else forgiving(schema)
    reader = Rows(str(folder), (), format, whole, {**options, **more})
    expected = rows_of(reader.frame(spark, wanted, with_file=True))
    prepared = reader.prepared_frame(spark, lambda: wanted, with_file=True)
    assert prepared is not None
    assert_same(schema, expected, rows_of(prepared), "prepared")
    if format != "parquet":
        parts = [part for one in wanted for part in cut_at_random(rng, one)]
        assert_same(
            schema, expected, rows_of(reader.frame(spark, parts, with_file=True)), "in slices"
        )
    with_metadata_too(spark, reader, wanted, expected)
    if by_spark_alone is not None:
        alone = Rows(str(folder), (), format, whole, {**options, **more, **by_spark_alone})
        assert_same(
            schema, expected, rows_of(alone.frame(spark, wanted, with_file=True)), "by Spark"
        )
    without_dead_letters(spark, rng, folder, wanted, format, schema, options, expected)
    return expected


def with_metadata_too(
    spark: SparkSession, reader: Rows, wanted: Sequence[Slice], expected: Read
) -> None:
    """Columns about the file change no other column, and are those of the row's file."""
    schema = reader.schema or ""
    own, corrupt, text = schema.partition(f", {CORRUPT_COLUMN} string")
    both = with_metadata(own, list(COLUMNS)) + corrupt + text
    more = Rows(reader.path, (), reader.format, both, reader.options, tuple(COLUMNS))
    prepared = more.prepared_frame(spark, lambda: wanted, with_file=True)
    assert prepared is not None
    files = {part.path: part.file for part in wanted}
    for frame in (more.frame(spark, wanted, with_file=True), prepared):
        assert_same(schema, expected, rows_of(frame.drop(*COLUMNS)), "with metadata")
        about = frame.where(F.col(FAULT_COLUMN).isNull()).select(
            FILE_COLUMN,
            *("file_path", "file_name", "file_size"),
            F.unix_micros("file_modification_time"),
        )
        for path, *found in about.distinct().collect():
            file = files[path]
            assert found == [path, Path(path).name, file.size, file.mtime_ns // 1000]


def without_dead_letters(
    spark: SparkSession,
    rng: random.Random,
    folder: Path,
    wanted: Sequence[Slice],
    format: str,
    schema: str,
    options: Mapping[str, str],
    expected: Read,
) -> None:
    """Good files have the same rows, and bad ones fail as such, in both kinds of frames."""
    more = {} if format == "parquet" else {"mode": "FAILFAST"}
    reader = Rows(str(folder), (), format, schema, {**options, **more})
    if format != "csv":
        reader.columns = StructType.fromDDL(schema)

    def frames(parts: Sequence[Slice]) -> Iterator[DataFrame]:
        yield reader.frame(spark, parts)
        prepared = reader.prepared_frame(spark, WholeSplit(lambda: parts).wanted)
        assert prepared is not None
        yield prepared

    good = [part for part in wanted if "bad" not in expected.get(part.path, ())]
    rows = sum((expected.get(part.path, Counter()) for part in good), Counter[str]())
    for frame in frames(good):
        assert texts_of(frame) == rows, f"{schema} {options}"
    bad = [part for part in wanted if "bad" in expected.get(part.path, ())]
    for part in rng.sample(bad, min(2, len(bad))):
        for frame in frames([part]):
            with pytest.raises(Exception) as told:
                texts_of(frame)
            error = translate(told.value, "job", [])
            body = Path(part.path).read_bytes()
            assert isinstance(error, BadRowError), f"{error}\n{schema} {body[:2000]!r}"


# --- JSON ----------------------------------------------------------------------------------------

_NUMBERS = (
    *("0", "7", "-12", "-0", "2147483648", "9223372036854775807", "9223372036854775808", "1.0"),
    *("1e3", "01", "+1", ".5", "5.", '"5"', "1" * 30, "1" * 1_001, "0." + "1" * 1_001, "1e5000"),
)
_FRACTIONS = (
    *("0.1", "3", "-0", "-0.0", "-0e0", "1e-310", "123456789.123456789", "1e400", "NaN", '"NaN"'),
    *("Infinity", "-Infinity", '"Infinity"', '"-INF"', "0.1e1", "1E+2", "4.9e-324", "1e23"),
    *("9007199254740993", "0.30000000000000004", "2.2250738585072011e-308", "1" * 400, '""'),
)
_TEXTS = (
    *('"a"', '""', '"}{"', '"}\\n{"', r'"\"}{\""', r'"\\"', r'"\u00e4\n"', r'"\ud83d\ude00"'),
    *(r'"\ud83d"', '"日本"', "5", "{}", "[1, 2]", "true", "'a'", "'}'", '"\t"', r'"\x"', '"', "-0"),
    *('{"a": 1.50, "b": [ ]}', "NaN", "1e400", "'it\"s'", '"/* */"', "0.10"),
)
_FLAGS = ("true", "false", "null", '"true"', "1", "True", "truex")
_TIMES = (
    *('"2026-07-15T12:00:00.000Z"', '"2026-07-15 12:00:00"', '"2026-07-15T12:00:00.123456Z"'),
    *('"2026-07-15"', '"2026-07-15T12:00:00+02:00"', '"2026-07-15T12"', "5", '"x"', '""'),
    *('"2026-02-30T00:00:00Z"', '"1583-01-01T00:00:00Z"', '"1001-01-01T00:00:00Z"', "-0"),
    *('"2026-07-15T24:00:00Z"', '"2026-07-15T12:00:60Z"', '"2026-07-15T12:00:00.Z"'),
    *('"1900-01-01T00:00:00Z"', '"0999-01-01T00:00:00Z"', '"2026-07-15T12:00:00z"'),
)
_VALUES = {
    "long": _NUMBERS,
    "int": _NUMBERS,
    "double": _FRACTIONS,
    "string": _TEXTS,
    "boolean": _FLAGS,
    "timestamp": _TIMES,
    "float": _FRACTIONS,
    "date": _TIMES,
    "decimal(9,2)": _FRACTIONS,
    "array<long>": ("[]", "[1, 2]", "[1, null]", "[-0]", "[[1]]", '["a"]', "{}", "1", "[1,]"),
    "array<double>": ("[]", "[1, 2.5]", "[-0]", "[NaN]", "[null]"),
    "struct<x: long, s: string>": (
        *('{"x": 1}', '{"s": "}"}', "{}", "[]", "1", '{"x": -0, "s": 5}', '{"X": 1}', '""'),
        *('{"x": 1, "x": 2}', '{"x": 1}}', '{"x": {"x": 1}}', "null", '{"x": "a"}'),
    ),
    "array<struct<t: timestamp, v: double>>": (
        *("[]", "[{}]", '[{"v": 1}, {"t": "2026-07-15T12:00:00Z"}]', '[{"v": -0}]', "[null]"),
    ),
    "map<string, long>": ("{}", '{"a": 1}', '{"a": "x"}', "[]"),
}


def some_line(rng: random.Random, columns: Mapping[str, str], odd: float) -> str:
    """An object with some of the columns; the values that come first are plain."""
    fields = []
    for name, type in columns.items():
        if rng.random() < 0.15:
            continue
        values = _VALUES[type]
        value = rng.choice(values if rng.random() < odd else values[:2])
        fields.append(f'"{name.upper() if rng.random() < odd / 10 else name}": {value}')
    if rng.random() < odd:
        fields.append(
            rng.choice(
                (
                    *('"other": 1', '"other": {"n": [1, {"n": 2}]}', '"other": "}{"', "'o': 1"),
                    f'"other": {"[" * 1_001}{"]" * 1_001}',
                    f'"other": {"[" * 900}{"]" * 900}',
                    f'"other": {"1" * 1_100}',
                    *('"other": nan', "other: 1", '"other": "\x01"', '"other": 1,', '"": 1'),
                )
            )
        )
        rng.shuffle(fields)
    return "{" + rng.choice((", ", ",")).join(fields) + "}"


_SPOILERS = (
    *("{0} ", " {0}", "{0}{0}", "{0} {0}", "{0},{0}", "[{0}]", "[{0},{0}]", "{0} x", "x {0}"),
    *("{0}}}", "{0}]", "", "  ", "5", "null", "[]", '"a"', "{{", "}}", "{0}\r{0}", "\x00", "#{0}"),
    *("{0}//{0}", "{0}\t{0}\r", "\ufeff{0}", "{{{0}", "{0}\x0b{0}", "\u2028{0}", "{0}{{"),
)


def some_json(rng: random.Random, columns: Mapping[str, str]) -> bytes:
    odd = rng.choice((0, 0, 0.05, 0.5))
    lines = []
    for _ in range(rng.randrange(6)):
        line = some_line(rng, columns, odd)
        if rng.random() < odd / 2:
            line = rng.choice(_SPOILERS).format(line)
        lines.append(line)
    body = rng.choice(("\n", "\n", "\n", "\r\n", "\r", "", " ")).join(lines)
    body += rng.choice(("", "\n"))
    if rng.random() < odd / 5:
        body = body[: rng.randrange(len(body) + 1)]
    data = body.encode("utf-8", "surrogatepass")
    if rng.random() < odd / 5 and data:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + rng.randrange(2) :]
    return (b"\xef\xbb\xbf" if rng.random() < 0.05 else b"") + data


def packed(rng: random.Random, folder: Path, name: str, body: bytes) -> None:
    """Sometimes compressed, and sometimes that damaged."""
    if rng.random() < 0.1:
        name, body = f"{name}.gz", gzip.compress(body)
        match rng.randrange(5):
            case 0:
                body = body[: rng.randrange(len(body))]
            case 1:
                body = body[:-8] + b"\0\0\0\0" + body[-4:]
            case 2:
                body = b"not gzip" + body
    (folder / name).write_bytes(body)


def test_json(spark: SparkSession, tmp_path: Path) -> None:
    for number, rng in enumerate(batches("json")):
        folder = tmp_path / str(number)
        folder.mkdir()
        types = list(_VALUES)[: rng.choice((6, len(_VALUES)))]
        columns = {f"c{n}": rng.choice(types) for n in range(rng.randrange(1, 5))}
        for case in range(BATCH):
            packed(rng, folder, f"{case}.json", some_json(rng, columns))
        schema = ", ".join(f"{name} {type}" for name, type in columns.items())
        read = read_all_ways(
            spark, folder, rng, "json", schema, {}, by_spark_alone={"timeZone": "UTC"}
        )
        assert sum(n for rows in read.values() for n in rows.values()) > BATCH / 4


# --- CSV -----------------------------------------------------------------------------------------

_CELLS = {
    "long": ("1", "-7", "", "x", "1.5", "9223372036854775808", "-0", " 1", "+1", '"1"'),
    "string": ("a", "ä b", "", '""', '"a,b"', '"a;b"', '"x""y"', '"a\nb"', '"', "a\\", "#", "null"),
    "double": ("0.5", "1", "NaN", "Infinity", "-0", "1e400", "x", "1.", ""),
    "timestamp": ("2026-07-15T12:00:00Z", "2026-07-15", "x", "2026-07-15 12:00:00", ""),
    "boolean": ("true", "false", "TRUE", "1", ""),
    "date": ("2026-07-15", "2026-02-30", "x", ""),
}
_CSV_OPTIONS: Sequence[Mapping[str, str]] = (
    *({}, {"header": "true"}, {"header": "true", "enforceSchema": "true"}),
    *({"header": "true", "sep": ";"}, {"header": "true", "sep": "\\t"}, {"sep": "||"}),
    *({"header": "true", "comment": "#"}, {"comment": "#", "nullValue": "null"}),
    *({"quote": "'", "header": "true"}, {"ignoreLeadingWhiteSpace": "true"}),
)


def some_csv(rng: random.Random, columns: Mapping[str, str], options: Mapping[str, str]) -> bytes:
    odd = rng.choice((0, 0, 0.1, 0.5))
    separator = options.get("sep", ",").replace("\\t", "\t")
    lines = []
    for _ in range(rng.randrange(6)):
        cells = [
            rng.choice(_CELLS[type] if rng.random() < odd else _CELLS[type][:2])
            for type in columns.values()
        ]
        if rng.random() < odd / 3:
            cells = rng.choice((cells[1:], [*cells, "more"], ["#", *cells[1:]], [""]))
        lines.append(separator.join(cells))
    if "header" in options:
        names = list(columns)
        if rng.random() < odd:
            names = rng.choice((names[::-1], [n.upper() for n in names], names[1:], [*names, "z"]))
        lines.insert(0, separator.join(names))
    if rng.random() < odd:
        lines.insert(0, rng.choice(("", "  ", "# no row")))
    body = rng.choice(("\n", "\n", "\r\n", "\r")).join(lines) + rng.choice(("", "\n", "\r"))
    data = body.encode()
    if rng.random() < odd / 5 and data:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at:]
    return (b"\xef\xbb\xbf" if rng.random() < 0.05 else b"") + data


def test_csv(spark: SparkSession, tmp_path: Path) -> None:
    for number, rng in enumerate(batches("csv")):
        folder = tmp_path / str(number)
        folder.mkdir()
        columns = {f"c{n}": rng.choice(list(_CELLS)) for n in range(rng.randrange(1, 5))}
        options = {"enforceSchema": "false", **rng.choice(_CSV_OPTIONS)}
        for case in range(BATCH):
            packed(rng, folder, f"{case}.csv", some_csv(rng, columns, options))
        schema = ", ".join(f"{name} {type}" for name, type in columns.items())
        read = read_all_ways(spark, folder, rng, "csv", schema, options)
        assert sum(n for rows in read.values() for n in rows.values()) > BATCH / 4


# --- Parquet -------------------------------------------------------------------------------------

_TIME = 1_784_116_800
_ARRAYS: Sequence[tuple[pa.DataType, Sequence[Any]]] = (
    (pa.int64(), (1, -7, None, 2**40)),
    (pa.int32(), (1, None, 2**31 - 1)),
    (pa.uint64(), (1, None, 2**63)),
    (pa.int8(), (1, None)),
    (pa.float64(), (1.0, 2.5, None, -0.0, float("nan"))),
    (pa.float32(), (1.0, None)),
    (pa.string(), ("a", "7", None, "2026-07-15T12:00:00Z", "ä")),
    (pa.large_string(), ("a", "7", None)),
    (pa.binary(), (b"a", b"7", b"\xff", None)),
    (pa.bool_(), (True, False, None)),
    (pa.date32(), (20_000, None)),
    (pa.timestamp("us", "UTC"), (_TIME * 10**6, None)),
    (pa.timestamp("us"), (_TIME * 10**6, None)),
    (pa.timestamp("ms", "UTC"), (_TIME * 10**3, None)),
    (pa.timestamp("ns"), (_TIME * 10**9 + 1_000, -1_000, None)),
    (pa.timestamp("ns", "UTC"), (_TIME * 10**9, None)),
    (pa.decimal128(9, 2), (Decimal("1.50"), Decimal("3.00"), None)),
    (pa.null(), (None,)),
    (pa.dictionary(pa.int32(), pa.string()), ("a", "7", None)),
    (pa.struct([("x", pa.int64()), ("s", pa.string())]), ({"x": 1, "s": "a"}, None, {"x": None})),
    (pa.struct([("S", pa.string()), ("X", pa.int32())]), ({"X": 1, "S": "a"}, None)),
    (pa.struct([("x", pa.null())]), ({"x": None}, None)),
    (pa.list_(pa.int64()), ([1, None], [], None)),
    (pa.large_list(pa.int32()), ([1], None)),
    (pa.list_(pa.null()), ([], [None], None)),
    (pa.list_(pa.struct([("X", pa.int32())])), ([{"X": 1}], None)),
    (pa.map_(pa.string(), pa.int32()), ([("a", 1)], None)),
)
_DECLARED = (
    *("long", "int", "smallint", "double", "float", "string", "boolean", "date", "timestamp"),
    *("timestamp_ntz", "decimal(9,2)", "decimal(38,4)", "binary", "struct<x: long, s: string>"),
    *("array<long>", "array<struct<x: long>>", "map<string, long>"),
)
_LIKELY: Mapping[str, int] = {
    **{"long": 0, "int": 1, "double": 4, "float": 5, "string": 6, "boolean": 9, "date": 10},
    **{"timestamp": 11, "timestamp_ntz": 12, "decimal(9,2)": 16, "binary": 8},
    **{"struct<x: long, s: string>": 19, "array<long>": 22, "map<string, long>": 26},
}
"""The array that is just so."""


def some_parquet(rng: random.Random, path: Path, columns: Mapping[str, str]) -> None:
    odd, rows = rng.choice((0, 0, 0.2, 0.5)), rng.randrange(8)
    arrays, names = [], []
    for name, declared in columns.items():
        if rng.random() < odd / 4:
            continue
        type, values = _ARRAYS[_LIKELY.get(declared, 0)]
        if rng.random() < odd:
            type, values = rng.choice(_ARRAYS)
        kept = values if rng.random() < 0.5 else values[:1]
        values = [rng.choice(kept) for _ in range(rows)]
        arrays.append(pa.array(values, type))
        names.append(name.upper() if rng.random() < odd else name)
    if not arrays or rng.random() < odd:
        arrays.append(pa.array([1] * rows, pa.int64()))
        names.append(rng.choice(("more", "C0", "c0")))
    pq.write_table(
        pa.Table.from_arrays(arrays, names),
        path,
        row_group_size=rng.choice((1, 3, 100)),
        compression=rng.choice(("snappy", "zstd", "gzip", "none", "lz4", "brotli")),
        use_dictionary=rng.random() < 0.5,
        version=rng.choice(("1.0", "2.6")),
        data_page_version=rng.choice(("1.0", "2.0")),
        store_schema=rng.random() < 0.5,
        use_deprecated_int96_timestamps=rng.random() < odd / 2,
    )
    if rng.random() < odd / 4:
        data = path.read_bytes()
        at = rng.randrange(len(data))
        path.write_bytes(rng.choice((data[:at], b"", b"none" + data[4:], data[4:])))


def row_groups_apart(whole: Slice) -> Iterator[Slice]:
    with open(whole.path, "rb") as file:
        begins = row_groups(file)
    for begin, end in itertools.pairwise(sorted({0, *begins[1:], whole.size})):
        yield Slice(whole.file, begin, end)


def test_parquet(spark: SparkSession, tmp_path: Path) -> None:
    for number, rng in enumerate(batches("parquet")):
        folder = tmp_path / str(number)
        folder.mkdir()
        columns = {f"c{n}": rng.choice(_DECLARED) for n in range(rng.randrange(1, 4))}
        for case in range(BATCH):
            some_parquet(rng, folder / f"{case}.parquet", columns)
        schema = ", ".join(f"{name} {type}" for name, type in columns.items())
        read = read_all_ways(spark, folder, rng, "parquet", schema, {})
        wanted = [slice_of(path) for path in sorted(folder.iterdir())]
        good = [part for part in wanted if "bad" not in read.get(part.path, ())]
        reader = Rows(str(folder), (), "parquet", schema, {})
        parts = [part for one in good for part in row_groups_apart(one)]
        of_good = {part.path: read[part.path] for part in good if part.path in read}
        found = rows_of(reader.frame(spark, parts, with_file=True))
        assert_same(schema, of_good, found, "row group by row group")
        declared = StructType.fromDDL(schema)
        assert isinstance(declared, StructType)
        plain = [part for part in good if is_plainly(part.file, declared)]
        found = rows_of(reader._by_spark(spark, plain, with_file=True)) if plain else {}
        of_plain = {part.path: read[part.path] for part in plain if part.path in read}
        assert_same(schema, of_plain, found, "by Spark")
