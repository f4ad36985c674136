"""JSON lines that tasks parse: the rows are those of Spark's own reader, whatever is read."""

from __future__ import annotations

import gzip
import itertools
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dagster_jet.connectors.files import text_lines
from dagster_jet.connectors.files.json_rows import can_parse, parse
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.row_frames import Rows
from dagster_jet.connectors.files.slices import Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "n bigint, i int, s string, d double, b boolean, t timestamp, "
    "p struct<x: bigint, s: string, t: timestamp, q: struct<y: double>>, "
    "l array<bigint>, m array<struct<t: timestamp, v: string>>, unused string"
)
PART = "n bigint, s string, t timestamp, p struct<s: string, q: struct<y: double>>, l array<bigint>"
FAIL = {"mode": "FAILFAST"}


def struct(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def slice_of(path: Path, begin: int = 0, end: int | None = None) -> Slice:
    size = path.stat().st_size
    file = InputFile(path.stat().st_mtime_ns, str(path), size)
    return Slice(file, begin, size if end is None else end)


def texts(frame: DataFrame) -> list[str]:
    return [row[0] for row in frame.select(F.to_json(F.struct("*"))).collect()]


# --- lines -------------------------------------------------------------------------------------

_NUMBERS = ("0", "-0", "7", "-12", "2147483648", "9223372036854775808", "1.0", "1e3", "01", '"5"')
_FRACTIONS = ("0.1", "-0.0", "3", "1e-310", "123456789.123456789", "1e400", '"NaN"', "NaN", '""')
_TEXTS = ('"a"', '""', r'"\u00e4\n"', r'"\ud83d\ude00"', r'"\ud83d"', "5", "{}", "true", '"日本"')
_FLAGS = ("true", "false", '"true"', "1", "null")
_TIMES = (
    *('"2026-07-15T12:00:00.000Z"', '"2026-07-15 12:00:00"', '"2026-07-15T12:00:00.123456Z"'),
    *('"2026-07-15"', '"2026-07-15T12:00:00+02:00"', '"2026-07-15T12"', "5", '"x"'),
    *('"2026-02-30T00:00:00Z"', '"1583-01-01T00:00:00Z"', '"1001-01-01T00:00:00Z"'),
)


def some_line(rng: random.Random, odd: float) -> str:
    """An object with some of the schema's columns; the values that come first are plain."""

    def one(values: tuple[str, ...]) -> str:
        if rng.random() < 0.1:
            return "null"
        return rng.choice(values if rng.random() < odd else values[:2])

    def some(fields: dict[str, Callable[[], str]]) -> str:
        there = [name for name in fields if rng.random() < 0.7]
        rng.shuffle(there)
        return "{{{}}}".format(", ".join(f'"{name}": {fields[name]()}' for name in there))

    def several(value: Callable[[], str]) -> str:
        return "[{}]".format(", ".join(value() for _ in range(rng.randrange(3))))

    inner = {"y": lambda: one(_FRACTIONS)}
    struct = {
        "x": lambda: one(_NUMBERS),
        "s": lambda: one(_TEXTS),
        "t": lambda: one(_TIMES),
        "q": lambda: some(inner),
    }
    element = {"t": lambda: one(_TIMES), "v": lambda: one(_TEXTS)}
    return some(
        {
            "n": lambda: one(_NUMBERS),
            "i": lambda: one(_NUMBERS),
            "s": lambda: one(_TEXTS),
            "d": lambda: one(_FRACTIONS),
            "b": lambda: one(_FLAGS),
            "t": lambda: one(_TIMES),
            "p": lambda: some(struct),
            "l": lambda: several(lambda: one(_NUMBERS)),
            "m": lambda: several(lambda: some(element)),
            "other": lambda: rng.choice(("1", '{"n": [1, {"n": 2}]}', "[]")),
        }
    )


_ODD_LINES = (
    *('{"n": 1} ', ' {"n": 1}', '{"n": 1}{"n": 2}', '{"n": 1, "n": 2}', "{'n': 1}", "[]", "5"),
    *(
        '[{"n": 1}]',
        '{"n": 1,}',
        '{"n": 1',
        '{"N": 5}',
        "{}",
        '{"n": 1} x',
        '{"p": {"s": "}\\n{"}}',
    ),
)


def test_a_line_that_arrow_takes_is_the_row_that_spark_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Line by line, over a thousand: where Arrow takes one Spark does, and makes the same of it."""
    rng = random.Random(11)
    lines = [*_ODD_LINES, *(some_line(rng, odd=0.15) for _ in range(1_200))]
    schema = struct(SCHEMA)
    arrow = to_arrow_schema(schema, timezone="UTC")
    batches = {n: parse(line.encode(), arrow, is_utc=True) for n, line in enumerate(lines)}
    taken = {n: batch for n, batch in batches.items() if batch is not None}
    assert 300 < len(taken) < len(lines) - 300, "both kinds are there"
    (tmp_path / "taken.json").write_text("\n".join(lines[n] for n in taken))
    read = spark.read.schema(SCHEMA).options(**FAIL).json(str(tmp_path / "taken.json"))
    ours = spark.createDataFrame(pa.Table.from_batches(list(taken.values())), schema=schema)
    assert texts(ours) == texts(read)


@pytest.mark.parametrize("columns", [SCHEMA, PART], ids=["all", "some"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_files_of_plain_and_other_blocks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str, zone: str
) -> None:
    """In pieces, in blocks of a few lines, with a compressed file and one with a mark before it."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    rng = random.Random(5)
    good = [some_line(rng, odd=0) for _ in range(900)]
    good[100:100] = ["", '{"s": 5}', ' {"n": 1} ', '{"t": "2026-07-15"}']
    text = "\n".join(good).encode()
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + text)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text + b"\n"))
    (tmp_path / "c.json").write_bytes(text.replace(b"\n", b"\r\n"))
    (tmp_path / "d.json").write_bytes(b"")
    (tmp_path / "large.json").write_bytes(text)
    names = ("a.json", "b.json.gz", "c.json", "d.json")
    wanted = [slice_of(tmp_path / name) for name in names]
    size = (tmp_path / "large.json").stat().st_size
    cuts = [0, 1000, 1001, size // 2, size]
    wanted += [slice_of(tmp_path / "large.json", a, b) for a, b in itertools.pairwise(cuts)]
    monkeypatch.setattr(text_lines, "_BLOCK_BYTES", 2_000)
    reader = Rows(str(tmp_path), (), "json", SCHEMA, FAIL, columns=struct(columns))
    frame = reader.frame(session, wanted)
    assert frame.schema.simpleString() == struct(SCHEMA).simpleString()
    whole = (
        session.read.schema(SCHEMA)
        .options(**FAIL)
        .json([str(tmp_path / name) for name in (*names, "large.json")])
    )
    names_used = [field.name for field in struct(columns) if field.name != "p"]
    picked = [*names_used, "p.s", "p.q.y"]
    assert sorted(texts(frame.select(picked))) == sorted(texts(whole.select(picked)))
    assert frame.where("p IS NULL").count() == whole.where("p IS NULL").count()


def test_what_only_spark_can_unpack_is_left_to_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json.deflate").write_bytes(zlib.compress(b'{"n": 1}\n{"n": 2}\n'))
    reader = Rows(str(tmp_path), (), "json", "n bigint", FAIL, columns=struct("n bigint"))
    frame = reader.frame(spark, [slice_of(tmp_path / "a.json.deflate")])
    assert sorted(row.n for row in frame.collect()) == [1, 2]


def test_a_bad_row_fails_as_spark_says(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n{"n": "no number"}\n')
    reader = Rows(str(tmp_path), (), "json", "n bigint", FAIL, columns=struct("n bigint"))
    wanted = [slice_of(tmp_path / "a.json")]
    with pytest.raises(Py4JJavaError, match="MALFORMED_RECORD"):
        reader.frame(spark, wanted).collect()
    bad = reader.first_bad(spark, wanted)
    assert bad is not None and bad.endswith('a.json:2: {"n": "no number"}')


@pytest.mark.parametrize(
    ("schema", "options", "expected"),
    [
        ("a bigint, b int, c string, d double, e boolean, f timestamp", {}, True),
        ("a struct<b: array<struct<c: string>>>", {"mode": "FAILFAST"}, True),
        ("a bigint", {"mode": "FAILFAST", "timestampFormat": "yyyy"}, False),
        ("a bigint", {"multiLine": "false"}, False),
        *((f"a {type}", {}, False) for type in ("float", "date", "decimal(9, 2)", "smallint")),
        *((f"a {type}", {}, False) for type in ("map<string, int>", "binary", "timestamp_ntz")),
        *((f"a {type}", {}, False) for type in ("array<float>", "struct<b: date>", "variant")),
        ("a bigint, A string", {}, False),
    ],
)
def test_types_and_options(
    spark: SparkSession, schema: str, options: dict[str, str], expected: bool
) -> None:
    assert can_parse(struct(schema), options) is expected
