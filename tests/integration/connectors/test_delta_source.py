"""A Delta Lake table as a source: its contract, and what other writers do to the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.delta import DeltaSource
from dagster_jet.errors import ConfigurationError, SourceError
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.check_source import check_source
from tests.integration.child import open_jet
from tests.long import long

from .table_reads import planned, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def url(tmp_path: Path) -> str:
    folder = tmp_path / "a b=c"
    deltalake.DeltaTable.create(folder, SCHEMA)
    return str(folder)


def append(url: str, *ids: int) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {n}" for n in ids]})
    deltalake.write_deltalake(url, rows, mode="append")


def opened(url: str, **options: Any) -> Any:
    made = sources.delta(url, **options).at_start("j", "in", on_one_host=True)
    return made.open("j", "in", None)


def restored(url: str, position: Any, **options: Any) -> Any:
    reader = opened(url, **options)
    reader.restore(json.loads(json.dumps(position)), None)
    return reader


@long  # each of its epochs is a Spark job
def test_a_table_keeps_the_contract(url: str, spark: SparkSession) -> None:
    def send(rows: Sequence[Any]) -> None:
        deltalake.write_deltalake(url, pa.Table.from_pylist(list(rows), SCHEMA), mode="append")

    def made() -> DeltaSource:
        return sources.delta(url).at_start("check_source", "in", on_one_host=True)

    check_source(made, send, spark, many=3_000)


def test_contents_are_read_in_bounded_epochs_and_then_each_version(url: str) -> None:
    append(url, *range(10))
    append(url, *range(10, 13))
    reader = opened(url)
    reader.accept(reader.poll())
    split = reader.plan(4)
    assert sum(one.end - one.first for one in split if one.end) <= 4
    at = reader.position()
    deltalake.DeltaTable(url).optimize.compact()
    append(url, 20)
    ids = Counter(version for version, *_ in planned(restored(url, at), 4))
    assert ids.keys() == {2, 4}, "the contents are those of version 2; compaction adds nothing"
    again = restored(url, at)
    assert planned(again) and planned(again) == []


@pytest.mark.parametrize("deletes", ["stop", "skip"])
def test_a_version_that_deletes(url: str, spark: SparkSession, deletes: str) -> None:
    reader = opened(url, deletes=deletes)
    append(url, 1, 2, 3)
    deltalake.DeltaTable(url).delete("id = 2")
    append(url, 4)
    if deletes == "stop":
        reader = opened(url, deletes=deletes, start=0)
        with pytest.raises(SourceError, match=r"version 2 of the table .* updates or deletes"):
            reader.poll()
        return
    found = read(spark, opened(url, deletes=deletes, start=0))
    assert sorted(row["id"] for row in found) == [1, 2, 3, 4]


def test_where_a_new_job_begins(url: str) -> None:
    append(url, 1)
    append(url, 2)
    latest = opened(url, start="latest")
    assert planned(latest) == []
    at = latest.position()
    append(url, 3)
    assert [one[0] for one in planned(restored(url, at))] == [3]
    assert [one[0] for one in planned(opened(url, start=2))] == [2, 3]
    times = {one["version"]: one["timestamp"] for one in deltalake.DeltaTable(url).history()}
    when = datetime.fromtimestamp(times[3] / 1000, timezone.utc)
    wanted = [version for version in (1, 2, 3) if times[version] >= times[3]]
    assert [one[0] for one in planned(opened(url, start=when))] == wanted
    assert planned(opened(url, start=when + timedelta(days=1))) == []


def test_a_log_or_a_file_that_is_gone(url: str, spark: SparkSession) -> None:
    append(url, 1)
    reader = opened(url, start="latest")
    planned(reader)
    at = reader.position()
    append(url, 2)
    append(url, 3)
    path = Path(url) / "_delta_log" / f"{2:020d}.json"
    body = path.read_bytes()
    deltalake.DeltaTable(url).create_checkpoint()
    path.unlink()
    with pytest.raises(SourceError, match="does not have version 2 any more"):
        restored(url, at).poll()
    path.write_bytes(body)
    for file in Path(url).glob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match=r"a data file of the table .* is gone"):
        read(spark, restored(url, at))


def test_another_table_at_the_same_place_is_not_read(url: str, tmp_path: Path) -> None:
    append(url, 1)
    reader = opened(url)
    planned(reader)
    Path(url).rename(tmp_path / "away")
    deltalake.DeltaTable.create(url, SCHEMA)
    with pytest.raises(SourceError, match="another one than the job has read"):
        restored(url, reader.position()).poll()


def test_values_of_partitions_and_columns_that_came_later(
    tmp_path: Path, spark: SparkSession
) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 6)
    row = {
        "id": 1, "text": "é/=%", "day": date(2026, 1, 2), "ok": True, "at": at, "none": None,
        "price": Decimal("1.25"), "parts": [{"a": 1}],
    }  # fmt: skip
    schema = pa.schema(
        [
            *SCHEMA, ("day", pa.date32()), ("ok", pa.bool_()), ("at", pa.timestamp("us")),
            ("none", pa.int32()), ("price", pa.decimal128(8, 2)),
            ("parts", pa.list_(pa.struct([("a", pa.int64())]))),
        ]
    )  # fmt: skip
    url = str(tmp_path / "table")
    by = ["text", "day", "ok", "none"]
    deltalake.write_deltalake(url, pa.Table.from_pylist([row], schema), partition_by=by)
    wide = pa.Table.from_pylist(
        [{**row, "id": 2, "more": 7}], schema.append(pa.field("more", pa.int64()))
    )
    for read_from in ("earliest", 0):
        reader = opened(url, start=read_from)
        assert [one.asDict(recursive=True) for one in read(spark, reader)] == [row]
    deltalake.write_deltalake(url, wide, mode="append", schema_mode="merge")
    found = sorted((one["id"], one["more"]) for one in read(spark, opened(url)))
    assert found == [(1, None), (2, 7)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": "first"}, "start: 'first'"),
        ({"start": datetime(2026, 1, 1)}, "has no time zone"),
        ({"deletes": "keep"}, "deletes: 'keep'"),
    ],
)
def test_what_is_no_source_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sources.delta("/table", **options)


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    made = {"delta.enableDeletionVectors": "true"}
    deltalake.DeltaTable.create(tmp_path / "t", SCHEMA, configuration=made)
    with pytest.raises(ConfigurationError, match="the feature 'deletionVectors'"):
        opened(str(tmp_path / "t"))
    with pytest.raises(SourceError, match="there is no table"):
        opened(str(tmp_path / "none"))


def test_from_table_to_table(url: str, tmp_path: Path, spark: SparkSession) -> None:
    """One job through Spark, stopped and started again."""
    p = Pipeline("copy")
    p.read_from(sources.delta(url), name="rows").write_to(
        sinks.delta(f"{tmp_path}/copy"), name="out"
    )
    with open_jet(tmp_path) as jet:
        for ids in ((1, 2, 3), (4,)):
            append(url, *ids)
            assert jet.run(p, JobConfig()).status is not JobStatus.FAILED
    rows = deltalake.DeltaTable(f"{tmp_path}/copy").to_pyarrow_table()["id"].to_pylist()
    assert Counter(rows) == Counter([1, 2, 3, 4])
