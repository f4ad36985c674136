"""Footers of Parquet files: what pyarrow says of them, also of damaged ones, where it dies."""

from __future__ import annotations

import random
from datetime import datetime
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

SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"
NEW = datetime(1900, 1, 1)


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
