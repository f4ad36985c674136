"""Footers of Parquet files: what pyarrow says of them, also of damaged ones, where it dies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, datetime
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from dagster_jet.connectors.files.parquet_footer import column_chunks
from dagster_jet.connectors.files.parquet_schema import check_schema, schema_of
from dagster_jet.connectors.files.parquet_tasks import ReadTables, is_plainly
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.files.row_size import row_size
from dagster_jet.connectors.files.slices import Slice, _row_groups_of
from dagster_jet.connectors.task_shares import WholeSplit
from dagster_jet.errors import BadRowError, SourceError
from tests.long import long

TABLE = pa.table({"n": pa.array([1, None, 3], pa.int64()), "t": ["a", "ä" * 40, None]})
CODECS = {"snappy": 1, "zstd": 6, "gzip": 2, "none": 0, "brotli": 4, "lz4": 7}
ENCODINGS = {
    **{0: "PLAIN", 2: "PLAIN_DICTIONARY", 3: "RLE", 4: "BIT_PACKED", 5: "DELTA_BINARY_PACKED"},
    **{6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY", 8: "RLE_DICTIONARY"},
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("has_dictionary", [True, False])
def test_chunks_are_those_that_pyarrow_finds(
    tmp_path: Path, codec: str, has_dictionary: bool
) -> None:
    wide = pa.table({f"c{n}": list(range(100)) for n in range(20)})  # more than 15 fields
    how = {"compression": codec, "row_group_size": 7, "use_dictionary": has_dictionary}
    pq.write_table(wide, tmp_path / "wide.parquet", **how)
    footer = pq.read_metadata(tmp_path / "wide.parquet")
    with open(tmp_path / "wide.parquet", "rb") as file:
        chunks = column_chunks(file)
    assert [len(columns) for columns in chunks] == [20] * 15
    for group, columns in enumerate(chunks):
        for place, chunk in enumerate(columns):
            there = footer.row_group(group).column(place)
            assert chunk.begin == (there.dictionary_page_offset or there.data_page_offset)
            assert chunk.codec == CODECS[codec]
            assert {ENCODINGS[one] for one in chunk.encodings} == set(there.encodings)


def test_a_file_without_rows_is_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    pq.write_table(TABLE.slice(0, 0), path)
    read = ReadTables((str(tmp_path), ()), WholeSplit(list), False, pa.schema([]), TABLE.schema)
    file = InputFile(1, str(path), path.stat().st_size)
    assert sum(batch.num_rows for batch in read.rows(Slice.whole(file))) == 0


@pytest.mark.parametrize("end", [b"x" * 7 + b"\x7f", b"\xff" * 4 + b"PAR1"], ids=["cut", "long"])
def test_a_file_that_is_cut_off_is_not_read_for_its_footer(end: bytes) -> None:
    """Failed before: the driver read as many bytes, up to 4 GB, as four bytes of data said."""

    class File(BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.read_bytes += len(data)
            return data

    file = File(b"PAR1" + bytes(1 << 20) + end)
    with pytest.raises(pa.ArrowInvalid, match="footer is not as Parquet has it"):
        column_chunks(file)
    assert file.read_bytes <= 64 << 10


@pytest.mark.parametrize("values_per_byte", [1, pytest.param(4, marks=long)])
def test_no_byte_of_a_footer_ends_the_process(tmp_path: Path, values_per_byte: int) -> None:
    """The driver's, which looks where a file can be cut, nor a task's."""
    path, rng = tmp_path / "one.parquet", random.Random(1)
    pq.write_table(TABLE, path, row_group_size=2)
    body = path.read_bytes()
    begin = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    place, spark_schema = (str(tmp_path), ()), from_arrow_schema(TABLE.schema)
    read = ReadTables(place, WholeSplit(list), False, pa.schema([]), TABLE.schema)
    file = InputFile(1, str(path), len(body))
    good = bad = 0
    for at in range(begin, len(body)):
        values = {0, 0xFF, body[at] ^ 1 << rng.randrange(8), rng.randrange(256)} - {body[at]}
        for value in rng.sample(sorted(values), min(len(values), values_per_byte)):
            path.write_bytes(body[:at] + bytes([value]) + body[at + 1 :])
            is_plainly(file, spark_schema)
            _row_groups_of(open_input(*place), file)
            row_size(open_input(*place), file, "parquet")
            try:
                good += sum(batch.num_rows for batch in read.rows(Slice.whole(file))) > 0
            except BadRowError as error:
                assert str(path) in str(error)
                bad += 1
    assert good > 100 and bad > 100


# --- what Spark notes ----------------------------------------------------------------------------

SCHEMA_KEY, VERSION_KEY = b"org.apache.spark.sql.parquet.row.metadata", b"org.apache.spark.version"
MARKS: dict[str, dict[bytes, bytes]] = {
    "Spark 2.4.8": {VERSION_KEY: b"2.4.8"},
    "Spark 2.3, which names no version": {SCHEMA_KEY: b"{}"},
    "Spark 4, as it was told": {VERSION_KEY: b"4.0.0", b"org.apache.spark.legacyDateTime": b""},
}
NO_MARKS = {"Spark 3": {VERSION_KEY: b"3.0.3", SCHEMA_KEY: b"{}"}, "others": {}}


def written(path: Path, table: pa.Table, marks: dict[bytes, bytes], **how: bool) -> InputFile:
    with pq.ParquetWriter(path, table.schema, store_schema=False, **how) as file:
        file.write_table(table)
        file.add_key_value_metadata(marks)
    return InputFile(1, str(path), path.stat().st_size)


def values(file: InputFile, kind: pa.DataType) -> list[object]:
    place, schema = (str(Path(file.path).parent), ()), pa.schema([("v", kind)])
    read = ReadTables(place, WholeSplit(list), False, pa.schema([]), schema)
    return [v for batch in read.rows(Slice.whole(file)) for v in batch.column(0).to_pylist()]


def dates_and_days() -> Iterator[tuple[date | None, int | None]]:
    """Dates, and their days since 1970 in the calendar of Spark 2."""
    for n in range(-719_162, -130_000, 7):
        day = date.fromordinal(n + 719_163)
        if day >= date(1582, 10, 15):
            yield day, n
        elif day < date(1582, 10, 5):
            months = (day.year + 4800) * 12 + day.month - 3  # since a March
            years = months // 12
            yield day, day.day + (153 * (months % 12) + 2) // 5 + 365 * years + years // 4 - 2472671
    # 1500-02-29 is a date of the old calendar alone.
    yield from ((date(1500, 3, 1), -171_596), (date(1500, 3, 1), -171_595), (None, None))


@pytest.mark.parametrize("marks", MARKS.values(), ids=MARKS)
def test_dates_of_the_calendar_of_spark_2_are_converted(
    tmp_path: Path, marks: dict[bytes, bytes]
) -> None:
    dates, days = zip(*dates_and_days(), strict=True)
    table = pa.table({"v": pa.array(days, pa.int32()).cast(pa.date32())})
    file = written(tmp_path / "old.parquet", table, marks)
    assert not is_plainly(file, from_arrow_schema(table.schema))
    assert dates[0] == date(1, 1, 1) and values(file, pa.date32()) == list(dates)
    before = table.slice(0, 1).set_column(0, "v", pa.array([-719_165], pa.int32()).cast("date32"))
    with pytest.raises(BadRowError, match="v has dates before the year 1"):
        values(written(tmp_path / "b.parquet", before, marks), pa.date32())


@pytest.mark.parametrize("marks", NO_MARKS.values(), ids=NO_MARKS)
def test_other_dates_stay_as_they_are(tmp_path: Path, marks: dict[bytes, bytes]) -> None:
    table = pa.table({"v": [date(1, 1, 1), date(1500, 2, 28)]})
    file = written(tmp_path / "new.parquet", table, marks)
    assert is_plainly(file, from_arrow_schema(table.schema))
    assert values(file, pa.date32()) == table.column("v").to_pylist()


OLD, NEW = datetime(1899, 12, 31), datetime(1900, 1, 1)
ON_REQUEST = {VERSION_KEY: b"4.0.0", b"org.apache.spark.legacyINT96": b""}


@pytest.mark.parametrize(
    ("marks", "is_int96", "is_bad"),
    [
        *((marks, is_int96, True) for marks in list(MARKS.values())[:2] for is_int96 in (0, 1)),
        (MARKS["Spark 4, as it was told"], False, True),
        (MARKS["Spark 4, as it was told"], True, False),
        (NO_MARKS["Spark 3"], False, False),
        (NO_MARKS["Spark 3"], True, True),
        (ON_REQUEST, False, False),
        (ON_REQUEST, True, True),
        ({}, True, False),
    ],
)
def test_times_of_the_calendar_of_spark_2_are_refused(
    tmp_path: Path, marks: dict[bytes, bytes], is_int96: bool, is_bad: bool
) -> None:
    kind = pa.timestamp("us", "UTC")
    for time in (OLD, NEW):
        table, path = pa.table({"v": pa.array([time, None], kind)}), tmp_path / "t.parquet"
        file = written(path, table, marks, use_deprecated_int96_timestamps=bool(is_int96))
        if is_bad and time == OLD:
            with pytest.raises(BadRowError, match="v has values before 1900-01-01 in the calendar"):
                values(file, kind)
        else:
            assert values(file, kind) == table.column("v").to_pylist()


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("x", pa.list_(pa.date32()))]),
        pa.list_(pa.struct([("x", pa.date32())])),
        pa.map_(pa.string(), pa.date32()),
    ],
    ids=str,
)
def test_old_dates_within_values_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    for day in (date(1582, 10, 14), date(1582, 10, 15)):
        value = {"x": [day]} if pa.types.is_struct(kind) else [{"x": day}]
        value = [("x", day)] if pa.types.is_map(kind) else value
        table = pa.table({"v": pa.array([None, value], kind)})
        file = written(tmp_path / "n.parquet", table, MARKS["Spark 2.4.8"])
        if day.day == 14:
            with pytest.raises(BadRowError, match="v has values before 1582-10-15"):
                values(file, kind)
        else:
            assert values(file, kind) == [None, value]


def test_a_schema_of_spark_counts_if_it_describes_the_columns(tmp_path: Path) -> None:
    """pyarrow keeps it when it drops, adds and changes columns."""
    place = open_input(str(tmp_path), ())
    said = StructType().add("id", LongType()).add("s", StringType()).add("t", TimestampType())
    time = pa.array([NEW], pa.timestamp("us"))
    of_spark = pa.table({"id": [1], "s": ["a"], "t": time})
    of_spark = of_spark.replace_schema_metadata({SCHEMA_KEY: said.json().encode()})
    for number, (table, schema) in enumerate((
        (of_spark, "`id` bigint, `s` string, `t` timestamp"),
        (of_spark.drop_columns(["s"]), "`id` bigint, `t` timestamp_ntz"),
        (of_spark.append_column("x", [[0.5]]),
         "`id` bigint, `s` string, `t` timestamp_ntz, `x` double"),
        (of_spark.set_column(0, "id", [[0.5]]), "`id` double, `s` string, `t` timestamp_ntz"),
        (of_spark.rename_columns(["id", "name", "t"]),
         "`id` bigint, `name` string, `t` timestamp_ntz"),
    )):  # fmt: skip
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table, path)
        file = InputFile(1, str(path), path.stat().st_size)
        assert schema_of(place, file, "job", "rows") == schema
    with pytest.raises(SourceError, match="lack: s, have besides: name, are of another type: t"):
        check_schema(place, file, "`id` bigint, `s` string, `t` timestamp", "job", "rows")
