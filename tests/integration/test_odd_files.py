"""Files as people have them: several objects in a line, headers in another order, damaged archives,
Parquet of other programs. What is read is all that was written, or the job says what is not."""

from __future__ import annotations

import bz2
import gzip
from collections import Counter
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.files.json_objects import objects_of
from dagster_jet.connectors.files.parquet_columns import UnfitError, as_declared
from dagster_jet.errors import BadRowError

from . import oracle
from .test_bad_input import SCHEMA, copying, good, run
from .world import World, write_input

if TYPE_CHECKING:
    from collections.abc import Callable

# --- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "objects"),
    [
        (b'{"a": 1}{"a": 2} {"a": 3}\n{"a": 4}', ['{"a": 1}', '{"a": 2}', '{"a": 3}', '{"a": 4}']),
        (b'{"a": 1}\r{"a": 2}\r\n\n', ['{"a": 1}', '{"a": 2}']),
        (b'{"a": "}{"}{"a": {"b": "\\"}{"}}', ['{"a": "}{"}', '{"a": {"b": "\\"}{"}}']),
        (b"{'a': '}{'}{'a': 2}", ["{'a': '}{'}", "{'a': 2}"]),
        (b'{"a": 1},{"a": 2}', ['{"a": 1}', ',{"a": 2}']),
        (b'{"a": 1} x {"a": 2}', ['{"a": 1}', 'x {"a": 2}']),
        (b'[{"a": 1},{"a": 2}]', ['[{"a": 1},{"a": 2}]']),
        (b'{"a": 1}}{"a": 2}', ['{"a": 1}', '}{"a": 2}']),
        (b'{"a": [1, 2}{"a": 3', ['{"a": [1, 2}', '{"a": 3']),
    ],
)
def test_a_line_has_all_its_objects_and_what_is_none(block: bytes, objects: list[str]) -> None:
    assert objects_of(block).to_pylist() == objects


@pytest.mark.parametrize("objects", [4, 40_000])
def test_a_file_without_line_ends(world: World, objects: int) -> None:
    (world.folder / "in").mkdir()
    text = "".join(f'{{"k": "a", "ts": {n}, "v": {n}}}' for n in range(objects))
    (world.folder / "in/1.json").write_text(text)
    run(world, copying(world))
    assert oracle.committed(world.folder / "out/copy", "v") == Counter((n,) for n in range(objects))


def test_what_is_no_object_is_a_bad_row(world: World) -> None:
    """Good objects stand in the same line."""
    (world.folder / "in").mkdir()
    path = world.folder / "in/1.json"
    path.write_text('{"k": "a", "ts": 1, "v": 1}\n{"k": "a", "ts": 2, "v": 2},{"k": "b"}\n')
    with pytest.raises(BadRowError) as told:
        run(world, copying(world))
    assert f'{path}:2: ,{{"k": "b"}}' in str(told.value)
    run(world, copying(world, dead_letters=True))
    assert oracle.committed(world.folder / "out/copy", "v") == Counter([(1,), (2,)])
    assert oracle.committed(world.folder / "out/dead", ("raw",)) == Counter([(',{"k": "b"}',)])


# --- CSV -----------------------------------------------------------------------------------------


def csv_copy(world: World, **options: str) -> Pipeline:
    p = Pipeline("copy")
    place, header = f"{world.folder}/in", {"header": "true", **options}
    source = sources.files(place, format="csv", schema="a long, b long", options=header)
    p.read_from(source, name="rows").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    return p


def test_columns_of_a_csv_file_in_another_order_are_refused(world: World) -> None:
    (world.folder / "in").mkdir()
    (world.folder / "in/1.csv").write_text("b,a\n4,3\n")
    with pytest.raises(BadRowError, match=r"header of the file.*: b, a; expected: a, b") as told:
        run(world, csv_copy(world))
    assert told.value.position == f"{world.folder}/in/1.csv"
    run(world, csv_copy(world, enforceSchema="true"))
    assert oracle.committed(world.folder / "out", "ab") == Counter([(4, 3)])


def test_a_first_line_that_is_too_long_for_a_field_is_a_header_that_does_not_fit(
    world: World,
) -> None:
    (world.folder / "in").mkdir()
    (world.folder / "in/1.csv").write_text("k,ts,v\na,1,1\n")
    path = world.folder / "in/2.csv"
    path.write_text('{"k":"' + "x" * 200_000 + '"}\n')
    run(world, copying(world, format="csv", dead_letters=True))
    assert oracle.committed(world.folder / "out/copy", "v") == Counter([(1,)])
    (letter,) = oracle.committed(world.folder / "out/dead", ("position", "reason"))
    assert letter[0] == str(path) and len(str(letter[1])) < 500
    assert 'header of the file does not fit the schema: {"k":"xxx' in str(letter[1])


# --- archives ------------------------------------------------------------------------------------

ROWS = b"".join(b'{"k": "a", "ts": %d, "v": %d}\n' % (n, n) for n in range(50_000))
DAMAGES: dict[str, Callable[[], tuple[str, bytes]]] = {
    "cut off": lambda: ("z.json.gz", gzip.compress(ROWS)[:-5_000]),
    "without its end": lambda: ("z.json.gz", gzip.compress(ROWS)[:-8]),
    "another checksum": lambda: ("z.json.gz", gzip.compress(ROWS)[:-8] + b"\1\2\3\4\5\6\7\10"),
    "no gzip": lambda: ("z.json.gz", ROWS[:100]),
    "no bzip2": lambda: ("z.json.bz2", ROWS[:100]),
    "bzip2, cut off": lambda: ("z.json.bz2", bz2.compress(ROWS)[:-5_000]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_a_bad_file(world: World, damage: str) -> None:
    """None of its rows counts: it may come again, whole."""
    write_input(world.folder / "in", 1, [good(1), good(2)])
    name, body = DAMAGES[damage]()
    path = world.folder / "in" / name
    path.write_bytes(body)
    filtered = copying(world, lambda frame: frame.where("v > 0"))
    with pytest.raises(BadRowError, match="compressed file is damaged") as told:
        run(world, filtered)
    assert told.value.position == str(path)
    run(world, copying(world, dead_letters=True))
    assert oracle.committed(world.folder / "out/copy", "v") == Counter([(1,), (2,)])
    (letter,) = oracle.committed(world.folder / "out/dead", ("position", "reason", "raw"))
    assert letter[0] == str(path) and letter[2] is None
    assert "compressed file is damaged" in str(letter[1])


# --- Parquet -------------------------------------------------------------------------------------

NOON = datetime(2026, 7, 15, 12, tzinfo=timezone.utc)
OTHERS_SCHEMA = (
    "id long, name string, p struct<x: long, `In`: struct<s: string>>, at timestamp, none double, "
    "small int, whole long, text long, shown string, day timestamp, written timestamp, "
    "price decimal(9,2)"
)


def others_parquet(first: int, rows: int) -> pa.Table:
    """Parquet as other programs write it for the schema `OTHERS_SCHEMA`."""
    numbers = range(first, first + rows)
    times = [NOON + timedelta(seconds=n) for n in numbers]
    inner = pa.struct([("S", pa.large_string())])
    return pa.table(
        {
            "ID": pa.array(numbers, pa.int32()),
            "Name": pa.array([f"n{n % 7}" for n in numbers]).dictionary_encode(),
            "p": pa.array(
                [{"X": n, "in": {"S": f"s{n}"}} for n in numbers],
                pa.struct(
                    [("X", pa.int16() if first + rows < 2**15 else pa.int64()), ("in", inner)]
                ),
            ),
            "at": pa.array(times, pa.timestamp("ns")),
            "none": pa.nulls(rows),
            "small": pa.array(numbers, pa.int64()),
            "whole": pa.array([float(n) for n in numbers], pa.float64()),
            "text": [str(n) for n in numbers],
            "shown": pa.array(numbers, pa.int64()),
            "day": [time.date() for time in times],
            "written": [time.isoformat() for time in times],
            "price": pa.array([n / 4 for n in numbers], pa.float64()),
        }
    )


def as_written(n: int) -> tuple[object, ...]:
    at = (NOON + timedelta(seconds=n)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    day = (NOON + timedelta(seconds=n)).strftime("%Y-%m-%dT00:00:00.000000Z")
    return (n, f"n{n % 7}", f"s{n}", n, at, None, n, n, n, str(n), day, at, n / 4)


def test_parquet_of_others_is_the_same_when_few_rows_come_and_when_many_do(world: World) -> None:
    """Five rows of a job that keeps up, and thirty thousand of a backlog: of one layout."""
    p = Pipeline("others")
    source = sources.files(f"{world.folder}/in", format="parquet", schema=OTHERS_SCHEMA)
    rows = p.read_from(source, name="rows")
    columns = ["id", "name", "p.In.s AS ps", "p.x AS px", "at", "none", "small", "whole", "text"]
    rows.select(*columns, "shown", "day", "written", "price").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    (world.folder / "in").mkdir()
    names = ("id", "name", "ps", "px", "at", "none", "small", "whole", "text", "shown", "day")
    expected = Counter[tuple[object, ...]]()
    for first, count in ((0, 5), (5, 30_000)):
        pq.write_table(others_parquet(first, count), world.folder / f"in/{first}.parquet")
        with world.jet() as jet:
            jet.run(p, JobConfig(restart_attempts_max=0), until="drained")
        expected += Counter(map(as_written, range(first, first + count)))
        found = oracle.committed(world.folder / "out", (*names, "written", "price"))
        assert list((found - expected).items())[:2] == list((expected - found).items())[:2] == []


CONVERSIONS: list[tuple[pa.Array, str | pa.DataType, object]] = [
    (pa.array([1, 2**40]), pa.int32(), "is int64, which is no int32"),
    (pa.array([1.0, 2.0]), pa.int64(), [1, 2]),
    (pa.array([1.5]), pa.int64(), "is double, which is no int64"),
    (pa.array(["7", "x"]), pa.int64(), "which is no int64"),
    (pa.array([7]), pa.timestamp("us", "UTC"), "no values in common"),
    (pa.array([NOON]), pa.int64(), "no values in common"),
    (pa.array([True]), pa.int64(), "no values in common"),
    (pa.array([1]), pa.bool_(), "no values in common"),
    (pa.array([[1]]), pa.int64(), "no values in common"),
    (pa.array([{"x": 1}]), pa.string(), "no values in common"),
    (pa.array([3]), pa.decimal128(9, 2), [Decimal("3.00")]),
    (pa.array([3 * 10**8]), pa.decimal128(9, 2), "which is no decimal"),
    (pa.array([b"\xff"]), pa.string(), "which is no string"),
    (pa.array([{"x": 1, "X": 2}]), pa.struct([("x", pa.int32())]), [{"x": 1}]),
    (pa.array([{"Ab": 1, "aB": 2}]), pa.struct([("ab", pa.int32())]), "may be Ab or aB"),
    (pa.array([None, {"x": None}], pa.struct([("x", pa.null())])).slice(1),
     pa.struct([("x", pa.int64())]), [{"x": None}]),
    (pa.array([[{"X": 1}], None, []]).slice(1), pa.list_(pa.struct([("x", pa.int32())])),
     [None, []]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "type", "expected"), CONVERSIONS, ids=lambda v: str(v)[:40])
def test_a_value_is_converted_or_refused(given: pa.Array, type: pa.DataType, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(UnfitError, match=expected):
            as_declared(given, type, "v")
    else:
        assert as_declared(given, type, "v").to_pylist() == expected


@pytest.mark.parametrize("kind", ["cut off", "cut off, without schema=", "another type"])
def test_parquet_that_cannot_be_read_is_a_dead_letter(world: World, kind: str) -> None:
    (world.folder / "in").mkdir()
    table = pa.table({"k": ["a", "a"], "ts": [1, None], "v": [1, 2]})
    pq.write_table(table, world.folder / "in/1.parquet")
    path = Path(world.folder / "in/2.parquet")
    pq.write_table(
        table.drop("v").append_column("v", [[[1], [2]]]) if kind == "another type" else table, path
    )
    if kind != "another type":
        path.write_bytes(path.read_bytes()[:-20])
    schema = None if "schema" in kind else SCHEMA
    run(world, copying(world, format="parquet", schema=schema, dead_letters=True))
    assert oracle.committed(world.folder / "out/copy", "v") == Counter([(1,)])
    letters = oracle.committed(world.folder / "out/dead", ("position", "reason"))
    assert {(place, str(reason)[:29]) for place, reason in letters} == {
        (str(world.folder / "in/1.parquet"), "ts is null"),
        (str(path), "an input file does not fit th"),
    }
