"""An Iceberg table as a source: its contract, and what other writers do to the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, NestedField, UUIDType

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.iceberg import IcebergSource
from dagster_jet.connectors.iceberg.snapshot_expiry import expirable
from dagster_jet.connectors.lake.table_read import check_reading
from dagster_jet.errors import ConfigurationError, SourceError, SourceUnavailableError
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.check_source import check_source
from tests.integration.child import open_jet
from tests.long import long
from tests.unit.connectors.iceberg_rows import NAME, by_library, options_at

from .table_reads import planned, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


class Lake:
    """A table in a SQLite catalog."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        with closing(load_catalog("lake", **options_at(self.folder))) as catalog:
            catalog.create_namespace("space")
            catalog.create_table(NAME, SCHEMA)

    @contextmanager
    def table(self) -> Iterator[Any]:
        with closing(load_catalog("lake", **options_at(self.folder))) as catalog:
            yield catalog.load_table(NAME)

    def append(self, *ids: int) -> int:
        """Returns the id of the snapshot."""
        with self.table() as table:
            table.append(
                pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {n}" for n in ids]})
            )
            return int(table.refresh().current_snapshot().snapshot_id)

    def change(self, change: Callable[[Any], Any]) -> None:
        with self.table() as table:
            change(table)

    def expire(self, *snapshots: int) -> None:
        self.change(lambda t: t.maintenance.expire_snapshots().by_ids(list(snapshots)).commit())

    def source(self, **options: Any) -> IcebergSource:
        place: Any = options_at(self.folder)
        return sources.iceberg("lake", NAME, catalog_options=place, **options)

    def reader(self, position: Any = None, **options: Any) -> Any:
        made = self.source(**options).at_start("j", "in", on_one_host=True).open("j", "in", None)
        if position is not None:
            made.restore(json.loads(json.dumps(position)), None)
        return made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "a b=c%20")


@long  # each of its epochs is a Spark job
def test_a_table_keeps_the_contract(lake: Lake, spark: SparkSession) -> None:
    def send(rows: Sequence[Any]) -> None:
        lake.change(lambda t: t.append(pa.Table.from_pylist(list(rows), SCHEMA)))

    def made() -> IcebergSource:
        return lake.source().at_start("check_source", "in", on_one_host=True)

    check_source(made, send, spark, many=3_000)


def test_contents_are_read_in_bounded_epochs_and_then_each_snapshot(lake: Lake) -> None:
    lake.append(*range(10))
    lake.append(*range(10, 13))
    reader = lake.reader()
    reader.accept(reader.poll())
    split = reader.plan(4)
    assert sum(one.end - one.first for one in split if one.end) <= 4
    at = reader.position()
    lake.append(20)
    pieces = planned(lake.reader(at), 4)
    assert {version for version, *_ in pieces} == {2, 3}, "the contents are those of snapshot 2"
    again = lake.reader(at)
    assert planned(again) and planned(again) == []


@pytest.mark.parametrize("deletes", ["stop", "skip"])
def test_a_snapshot_that_deletes(lake: Lake, spark: SparkSession, deletes: str) -> None:
    first = lake.append(1, 2, 3)
    lake.change(lambda table: table.delete("id = 2"))
    with lake.table() as table:
        named = table.current_snapshot().snapshot_id
    lake.append(4)
    if deletes == "stop":
        with pytest.raises(SourceError, match=rf"the snapshot {named} of .* updates or deletes"):
            lake.reader(start=first).poll()
        return
    found = read(spark, lake.reader(start=first, deletes=deletes))
    assert sorted(row["id"] for row in found) == [1, 2, 3, 4]


def test_where_a_new_job_begins(lake: Lake) -> None:
    latest = lake.reader(start="latest")
    assert planned(latest) == []
    ids = [lake.append(1), lake.append(2)]
    assert [one[0] for one in planned(latest)] == [1, 2]
    latest = lake.reader(start="latest")
    assert planned(latest) == []
    ids.append(lake.append(3))
    assert [one[0] for one in planned(lake.reader(latest.position()))] == [3]
    assert [one[0] for one in planned(lake.reader(start=ids[1]))] == [2, 3]
    with lake.table() as table:
        times = {one.sequence_number: one.timestamp_ms for one in table.snapshots()}
    when = datetime.fromtimestamp(times[2] / 1000, timezone.utc)
    wanted = [number for number in (1, 2, 3) if times[number] >= times[2]]
    assert [one[0] for one in planned(lake.reader(start=when))] == wanted
    assert planned(lake.reader(start=when + timedelta(days=1))) == []
    with pytest.raises(SourceError, match="has no snapshot 17"):
        lake.reader(start=17).poll()


def test_the_tag_keeps_what_is_to_be_read(lake: Lake) -> None:
    first = lake.append(1)
    reader = lake.reader()
    planned(reader)
    at = reader.position()
    reader.acknowledge(reader.unacknowledged())
    assert reader.unacknowledged() == {}
    second, _ = lake.append(2), lake.append(3)
    with lake.table() as table:
        assert [ref.snapshot_id for name, ref in table.refs().items() if name != "main"] == [first]
        assert expirable(table.metadata, table.metadata.snapshots) == [], (
            "maintenance keeps all from the tag on"
        )
    with pytest.raises(ValueError, match="protected"):
        lake.expire(first)
    assert [one[0] for one in planned(lake.reader(at))] == [2, 3]
    lake.expire(second)
    with pytest.raises(SourceError, match="expired before they were read"):
        lake.reader(at).poll()


def test_without_a_tag_nothing_is_written(lake: Lake) -> None:
    lake.append(1)
    reader = lake.reader(tag=False)
    planned(reader)
    assert reader.unacknowledged() == {}


@pytest.mark.parametrize("deletes", ["stop", "skip"])
def test_a_table_that_is_set_back(lake: Lake, deletes: str) -> None:
    first, _ = lake.append(1), lake.append(2)
    reader = lake.reader(deletes=deletes)
    planned(reader)
    lake.change(lambda t: t.manage_snapshots().rollback_to_snapshot(first).commit())
    lake.append(3)
    if deletes == "stop":
        with pytest.raises(SourceError, match="was set back to before its snapshot"):
            lake.reader(reader.position()).poll()
    else:
        after = planned(lake.reader(reader.position(), deletes=deletes))
        assert [one[0] for one in after] == [3]


def test_another_table_of_the_same_name_is_not_read(lake: Lake) -> None:
    lake.append(1)
    reader = lake.reader()
    planned(reader)
    with closing(load_catalog("lake", **options_at(lake.folder))) as catalog:
        catalog.drop_table(NAME)
        catalog.create_table(NAME, SCHEMA)
    with pytest.raises(SourceError, match="another one than the job has read"):
        lake.reader(reader.position()).poll()


def test_a_catalog_that_is_away_is_tried_again(lake: Lake) -> None:
    reader = lake.reader()
    lake.append(1)
    file = lake.folder / "catalog.db"
    file.rename(lake.folder / "away")
    file.mkdir()
    with pytest.raises(SourceUnavailableError):
        reader.poll()
    file.rmdir()
    (lake.folder / "away").rename(file)
    assert planned(reader)


def test_columns_that_were_renamed_or_came_later(lake: Lake, spark: SparkSession) -> None:
    lake.append(1)
    with lake.table() as table:
        with table.update_schema() as change:
            change.rename_column("text", "words")
        with table.update_schema() as change:
            change.add_column("text", DateType())
        with table.update_spec() as spec:
            spec.add_field("id", parse_transform("identity"))
        row = {"id": 2, "words": "é", "text": date(2026, 1, 2)}
        table.append(pa.Table.from_pylist([row], table.schema().as_arrow()))
    found = [one.asDict() for one in read(spark, lake.reader())]
    old = {"id": 1, "words": "row 1", "text": None}
    assert sorted(found, key=lambda one: one["id"]) == [old, row]


def test_what_is_no_source_is_refused(lake: Lake) -> None:
    with pytest.raises(ConfigurationError, match="has no namespace"):
        sources.iceberg("lake", "rows")
    with pytest.raises(ConfigurationError, match="the id of a snapshot"):
        check_reading("first", "stop", "the id of a snapshot")
    with pytest.raises(ConfigurationError, match="no branch 'none'"):
        lake.reader(branch="none")
    with closing(load_catalog("lake", **options_at(lake.folder))) as catalog:
        catalog.create_table("space.old", SCHEMA, properties={"format-version": "1"})
        catalog.create_table("space.keys", Schema(NestedField(1, "at", UUIDType())))
    place: Any = options_at(lake.folder)
    for name, why in (("old", "format version 1"), ("keys", "Spark has no type")):
        made = sources.iceberg("lake", f"space.{name}", catalog_options=place)
        with pytest.raises(ConfigurationError, match=why):
            made.at_start("j", "in", on_one_host=True)
    with pytest.raises(SourceError, match="there is no table"):
        sources.iceberg("lake", "space.none", catalog_options=place).at_start(
            "j", "in", on_one_host=True
        )


def test_from_table_to_table(lake: Lake, tmp_path: Path, spark: SparkSession) -> None:
    """One job through Spark, stopped and started again."""
    place: Any = options_at(lake.folder)
    p = Pipeline("copy")
    rows = p.read_from(lake.source(), name="rows")
    rows.write_to(sinks.iceberg("lake", "space.copy", catalog_options=place), name="out")
    with open_jet(tmp_path) as jet:
        for ids in ((1, 2, 3), (4,)):
            lake.append(*ids)
            assert jet.run(p, JobConfig()).status is not JobStatus.FAILED
    found = [row["id"] for row in by_library(lake.folder, "space.copy")]
    assert Counter(found) == Counter([1, 2, 3, 4])
