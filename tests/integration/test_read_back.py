"""A files sink writes rows that our own files source reads back: any type, name and value."""

from __future__ import annotations

import datetime as dt
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_jet import Jet, Pipeline, sinks, sources
from dagster_jet import aggregates as agg
from dagster_jet.core.ddl import quoted_name
from dagster_jet.errors import PipelineError
from dagster_jet.testing import collected

from .child import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = dt.timezone.utc
TEXTS = ["", "a,b", 'q"q', "new\nline", "cr\rx", "crlf\r\n", " lead", "trail ", "\\", "\\n", "null",
         "#c", "ä😀", "'", '""', "\t", "NaN", "1", "a\\\"b"]  # fmt: skip
NUMBERS = [0.0, -0.0, 1.5, 1e300, 5e-324, math.nan, math.inf, -math.inf]
DAYS = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 2, 28), dt.date(9999, 12, 31)]
FLAT: dict[str, list[Any]] = {
    "tinyint": [0, 127, -128],
    "int": [0, 2**31 - 1, -(2**31)],
    "bigint": [0, 2**63 - 1, -(2**63), 2**53 + 1],
    "double": NUMBERS,
    "float": [0.0, 1.5, -0.25, math.nan, math.inf, -math.inf],
    "boolean": [True, False],
    "string": TEXTS,
    "date": DAYS,
    "timestamp": [
        dt.datetime(1, 1, 2, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        dt.datetime(2026, 3, 29, 1, 30, 0, 1, UTC),
    ],
    "timestamp_ntz": [dt.datetime(2026, 3, 29, 2, 30, 0, 1), dt.datetime(1900, 1, 1)],
    "decimal(38,9)": [Decimal("0.000000001"), Decimal("-12345678901234567890123456789.5")],
}
NESTED: dict[str, list[Any]] = {
    "binary": [b"", b"\x00\xff", b"text"],
    "array<bigint>": [[], [1, None, 2**53 + 1]],
    "map<string,double>": [{}, {"a.b": 1.5, "": None}],
    "struct<a: bigint, `b.c`: array<string>>": [
        {"a": 1, "b.c": ["x", ""]},
        {"a": None, "b.c": None},
    ],
}
NAMES = ["a", "a.b", "a b", "ä", 'q"q', "c,d", "e`f", "group", "1", "x-y", "{z}", "_metadata.x"]
OPTIONS = {"csv": {"header": "true", "multiLine": "true", "escape": '"'}}
SEEDS = range(max(1, int(os.environ.get("JET_PROPERTY_EXAMPLES", "50")) // 50))


@pytest.fixture(scope="module")
def jet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jet]:
    store = tmp_path_factory.mktemp("read_back")
    with Jet(store=[f"file://{store}/a"], backup_count=0, spark=SPARK) as jet:
        yield jet


def comparable(value: Any) -> Any:
    """A hashable form in which NaN equals NaN, and -0.0 does not equal 0.0."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return tuple(sorted((k, comparable(v)) for k, v in value.items()))
    if isinstance(value, list):
        items = [(v[0], comparable(v[1])) if isinstance(v, tuple) else comparable(v) for v in value]
        return tuple(sorted(items) if value and isinstance(value[0], tuple) else items)
    return value


def multiset(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(tuple((k, comparable(v)) for k, v in row.items()) for row in rows)


def written(jet: Jet, folder: Path, format: Any, schema: str, rows: list[dict[str, Any]]) -> None:
    p = Pipeline(f"write-{folder.name}-{format}")
    p.read_from(sources.items(rows, schema=schema), name="items").write_to(
        sinks.files(str(folder / "out"), format=format), name="out"
    )
    jet.run(p, until="completed")


def read(jet: Jet, folder: Path, format: Any, schema: str) -> list[dict[str, Any]]:
    p = Pipeline(f"read-{folder.name}-{format}")
    source = sources.files(
        str(folder / "out"), format=format, schema=schema, options=OPTIONS.get(format)
    )
    p.read_from(source, name="files").write_to(sinks.collect(p.name), name="out")
    jet.run(p, until="drained")
    return list(collected(p.name).to_pylist())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_what_is_written_is_read(jet: Jet, tmp_path: Path, format: str, seed: int) -> None:
    rng = random.Random(f"{format}/{seed}")
    types = list(FLAT) if format == "csv" else list({**FLAT, **NESTED})
    names = [f"{rng.choice(NAMES)}{n}" for n in range(len(types))]
    values = {**FLAT, **NESTED}
    if format == "csv":
        # Spark's reader of CSV takes an empty text for null.
        values["string"] = [text for text in TEXTS if text]
    rows = [
        {name: rng.choice([None, *values[type]]) for name, type in zip(names, types, strict=True)}
        for _ in range(200)
    ]
    schema = ", ".join(f"{quoted_name(n)} {t}" for n, t in zip(names, types, strict=True))
    written(jet, tmp_path, format, schema, rows)
    assert multiset(read(jet, tmp_path, format, schema)) == multiset(rows)


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
@pytest.mark.parametrize("type", ["bigint", "double", "boolean"])
def test_a_single_column_keeps_its_nulls(jet: Jet, tmp_path: Path, format: str, type: str) -> None:
    rows = [{"v": value} for value in [*FLAT[type], None, None]]
    written(jet, tmp_path, format, f"v {type}", rows)
    assert multiset(read(jet, tmp_path, format, f"v {type}")) == multiset(rows)


DAY_US = 86_400_000_000
FAR_DAYS = [-719_163, -800_000, 2_932_897, 11_248_737, 11_248_738, 13_890_172, 100_000_000]
"""Days in year 0, before it, in year 10000, the last day of year 32767, and days after it."""


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_far_dates_and_times_are_kept(jet: Jet, tmp_path: Path, format: Any) -> None:
    """Failed before for CSV: Arrow has no text of a year after 32767, or one of another year."""
    rows = [{"id": n, "day": day, "us": day * DAY_US + n} for n, day in enumerate(FAR_DAYS)]
    rows += [{"id": 90, "day": 0, "us": 1}, {"id": 91, "day": None, "us": None}]
    w = Pipeline(f"write-{tmp_path.name}")
    w.read_from(sources.items(rows, schema="id int, day int, us bigint"), name="items").select(
        "id", "date_from_unix_date(day) AS day", "timestamp_micros(us) AS at",
        "CAST(timestamp_micros(us) AS timestamp_ntz) AS wall", name="far",
    ).write_to(sinks.files(str(tmp_path / "out"), format=format), name="out")  # fmt: skip
    jet.run(w, until="completed")
    r = Pipeline(f"read-{tmp_path.name}")
    schema, options = "id int, day date, at timestamp, wall timestamp_ntz", OPTIONS.get(format)
    source = sources.files(str(tmp_path / "out"), format=format, schema=schema, options=options)
    r.read_from(source, name="files").select(
        "id", "unix_date(day) AS day", "unix_micros(at) AS us",
        "unix_micros(CAST(wall AS timestamp)) AS wall", name="numbers",
    ).write_to(sinks.collect(r.name), name="out")  # fmt: skip
    jet.run(r, until="drained")
    expected = [{**row, "wall": row["us"]} for row in rows]
    assert multiset(list(collected(r.name).to_pylist())) == multiset(expected)


def test_a_stage_takes_columns_of_any_name(jet: Jet, tmp_path: Path) -> None:
    rows = [{"a.b": n % 3, "e`f": n} for n in range(9)]
    p = Pipeline(f"names-{tmp_path.name}")
    items = p.read_from(sources.items(rows, schema="`a.b` int, `e``f` bigint"), name="items")
    counted = items.group_by("a.b").rolling_aggregate(n=agg.count(), name="counts")
    counted.write_to(sinks.collect(p.name), name="out")
    jet.run(p, until="completed")
    assert {row["a.b"]: row["n"] for row in collected(p.name).to_pylist()} == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize(
    ("build", "format", "said"),
    [
        (
            lambda rows: rows.select("named_struct('a', id) AS s"),
            "csv",
            "the column 's'",
        ),
        (lambda rows: rows.select("array(id) AS s"), "csv", "the column 's'"),
        (
            lambda rows: rows.select("cast(name AS binary) AS b"),
            "csv",
            "the column 'b'",
        ),
    ],
)
def test_what_cannot_be_read_back_is_refused_before_data_flows(
    jet: Jet, tmp_path: Path, build: Callable[[Any], Any], format: Any, said: str
) -> None:
    p = Pipeline(f"refused-{tmp_path.name}")
    rows = p.read_from(sources.items([(1, "a")], schema="id bigint, name string"), name="items")
    build(rows).write_to(sinks.files(str(tmp_path / "out"), format=format), name="out")
    with pytest.raises(PipelineError, match=f"stage 'out'.*{said}"):
        jet.run(p, until="completed")
