"""Values in a Delta Lake table: partitions of any text, refused rows, statistics of files."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from .delta_rows import by_library, by_log
from .delta_table import SCHEMA, Table, commit, rows, stage


def test_rows_that_the_table_never_takes_are_named(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(SCHEMA)[1:]])
    sink = Table(tmp_path, schema, partition_by=["text"]).sink()
    batch = pa.concat_batches(
        [rows(1), rows(2, text=""), rows(3, text=None), rows(4, id=None), rows(5, text="é" * 50)]
    )
    found = sink.refused(batch)
    assert {n: one.reason.rpartition(": ")[2] for n, one in found.items()} == {
        1: "the partition column text is an empty text",
        3: "id is null",
        4: "the partition column text is too long for the name of a folder",
    }


@pytest.mark.parametrize("value", ["a/b", "a=b%2F", "é ü#?", "..", "x" * 240, "NULL", None, "+1"])
def test_any_text_is_a_partition(tmp_path: Path, value: str | None) -> None:
    made = Table(tmp_path, partition_by=["text", "day"])
    sink = made.sink()
    commit(sink, stage(sink, pa.concat_batches([rows(1, text=value), rows(2, day=None)])))
    made.now.optimize.compact()
    assert made.ids() == [1, 2]
    for read in (by_log(made.folder), by_library(str(made.folder))):
        assert {row["id"]: row["text"] for row in read} == {1: value, 2: "row 2"}
        assert {row["id"]: row["day"] for row in read} == {1: date(2026, 1, 2), 2: None}


def test_no_reader_skips_a_file_with_rows_that_it_looks_for(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("number", pa.float64()),
            ("text", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(12, 2)),
            ("ok", pa.bool_()),
            ("s", pa.struct([("a", pa.int64())])),
        ]
    )
    made = Table(tmp_path, schema)
    sink = made.sink()
    at = datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=timezone.utc)
    for epoch, row in enumerate(
        (
            {"id": 2**62, "number": 0.1, "text": "z" * 100, "at": at, "price": Decimal("-0.01")},
            {"id": -1, "number": math.inf, "text": "\U0010ffff" * 40, "at": None, "ok": True},
            {"id": 1, "number": math.nan, "text": "\U0010ffff" * 32, "price": Decimal(10**9)},
            {"id": 0, "number": -0.0, "text": "", "at": at.replace(year=9999), "ok": False},
            {"id": 0, "number": 1e300, "at": at.replace(year=9999, month=12, day=31, hour=23)},
            {"id": 7, "s": {"a": 1}},
        ),
        start=1,
    ):
        commit(sink, stage(sink, pa.RecordBatch.from_pylist([row], schema), epoch=epoch))
    [stats] = [
        json.loads(json.loads(line)["add"]["stats"])
        for line in (made.folder / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
        if "add" in json.loads(line)
    ]
    assert stats["numRecords"] == 1 and stats["maxValues"]["id"] == 2**62
    assert len(stats["minValues"]["text"]) == 32 and stats["nullCount"]["ok"] == 1
    data, whole = made.now.to_pyarrow_dataset(), made.now.to_pyarrow_table()
    for column in schema.names[:-1]:
        for value in whole.column(column).to_pylist():
            if value is not None and value == value:
                wanted = pc.field(column) == pa.scalar(value, schema.field(column).type)
                assert data.to_table(filter=wanted).num_rows == whole.filter(wanted).num_rows > 0
