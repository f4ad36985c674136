"""Columns of files that other programs wrote: under other names, or with a value in the metadata
only, or in another calendar."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from dagster_jet import sources
from dagster_jet.connectors.lake.added_rows import ReadPieces
from dagster_jet.connectors.task_shares import FixedShares
from dagster_jet.errors import BadRowError

from . import delta_table, iceberg_table
from .iceberg_rows import NAME, options_at

MAPPING = "schema.name-mapping.default"
DAY = date(2026, 1, 2)
PARTITIONS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "date": (pa.date32(), (DAY - date(1970, 1, 1)).days, DAY),
    "text": (pa.string(), "", ""),
    "number": (pa.int32(), 7, 7),
    "bool": (pa.bool_(), True, True),
    "decimal": (pa.decimal128(8, 2), Decimal("1.20"), Decimal("1.20")),
    "time": (pa.timestamp("us"), 1, datetime(1970, 1, 1, microsecond=1)),
    "instant": (pa.timestamp("us", "UTC"), 0, datetime(1970, 1, 1, tzinfo=timezone.utc)),
    "null": (pa.date32(), None, None),
}


def read(source: Any, columns: pa.Schema, max_rows: int = 1_000) -> list[dict[str, Any]]:
    reader = source.at_start("j", "in", on_one_host=True).open("j", "in", None)
    reader.accept(reader.poll())
    rows = list[dict[str, Any]]()
    while split := reader.plan(max_rows):
        task = ReadPieces(reader.source, FixedShares((split,)), columns)
        for batch in task([pa.record_batch({"n": pa.array([0])})]):
            rows += batch.to_pylist()
    return sorted(rows, key=lambda row: str(row["id"]))


def iceberg(folder: Path) -> Any:
    place: Any = options_at(folder)
    return sources.iceberg("lake", NAME, catalog_options=place)


def migrate(table: Any, path: Path, rows: pa.Table, partition: Any = (), **mapping: str) -> None:
    """Adds a file as `migrate` of Spark does: it has no ids, and no partition columns."""
    pq.write_table(rows, path)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=len(rows),
        file_size_in_bytes=path.stat().st_size,
        spec_id=table.spec().spec_id,
    )
    with table.transaction() as change:
        change.set_properties({MAPPING: table.schema().name_mapping.model_dump_json(), **mapping})
        with change.update_snapshot().fast_append() as files:
            files.append_data_file(file)


@pytest.mark.parametrize(("type", "kept", "value"), PARTITIONS.values(), ids=PARTITIONS)
def test_a_value_is_in_the_partition_only(
    tmp_path: Path, type: pa.DataType, kept: Any, value: Any
) -> None:
    """Failed before: null."""
    schema = pa.schema([("id", pa.int64()), ("day", type)])
    made = iceberg_table.Table(tmp_path, schema, by=(("day", "identity"),))
    with made.opened() as table:
        migrate(table, tmp_path / "old.parquet", pa.table({"id": [1, 2]}), [kept])
        table.refresh().append(pa.Table.from_pylist([{"id": 3, "day": value}], schema))
    expected = [{"id": n, "day": value} for n in (1, 2, 3)]
    assert read(iceberg(tmp_path), schema) == expected


def test_a_file_without_ids_has_former_names(tmp_path: Path) -> None:
    """Failed before: null."""
    part = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("old", pa.float64()), ("s", pa.list_(part))])
    made = iceberg_table.Table(tmp_path, schema)
    rows = [{"id": 1, "old": 1.5, "s": [{"a": 10, "b": 20}, None]}]
    with made.opened() as table:
        migrate(table, tmp_path / "old.parquet", pa.Table.from_pylist(rows, schema))
        with table.refresh().update_schema() as change:
            change.rename_column("old", "price")
            change.rename_column("s.element.a", "x")
        by_library = table.refresh().scan().to_arrow().to_pylist()
        now = pa.struct([("x", pa.int64()), ("b", pa.int64())])
        fields = [("id", pa.int64()), ("price", pa.float64()), ("s", pa.list_(now))]
        expected = [{"id": 1, "price": 1.5, "s": [{"x": 10, "b": 20}, None]}]
        assert read(iceberg(tmp_path), pa.schema(fields)) == by_library == expected
        with table.update_schema() as change:
            change.rename_column("s.element.b", "a")
    now = pa.struct([("x", pa.int64()), ("a", pa.int64())])
    fields = [*fields[:2], ("s", pa.list_(now))]
    with pytest.raises(BadRowError, match="a may be a or a"):  # the mapping names b and a
        read(iceberg(tmp_path), pa.schema(fields))


def test_a_table_gets_a_name_mapping_while_a_job_reads_it(tmp_path: Path) -> None:
    """Failed before: the job had the mapping of its start."""
    schema = pa.schema([("id", pa.int64())])
    made = iceberg_table.Table(tmp_path, schema)
    reader = iceberg(tmp_path).at_start("j", "in", on_one_host=True).open("j", "in", None)
    found = []
    for name in ("id", "number"):
        with made.opened() as table:
            if name != "id":
                with table.update_schema() as change:
                    change.rename_column("id", name)
            migrate(table.refresh(), tmp_path / f"{name}.parquet", pa.table({name: [1]}))
        reader.accept(reader.poll())
        task = ReadPieces(reader.source, FixedShares((reader.plan(1_000),)), schema)
        (batch,) = task([pa.record_batch({"n": pa.array([0])})])
        found += batch.to_pylist()
    assert found == [{"id": 1}, {"id": 1}]


def test_parts_of_a_column_have_other_names_now(tmp_path: Path) -> None:
    """Failed before: x was null, and a had the value of the former a."""
    part = pa.struct([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("s", part), ("m", pa.map_(pa.string(), part))])
    made = iceberg_table.Table(tmp_path, schema)
    values = {"a": 10, "b": 20, "c": 30}
    rows = [{"id": 1, "s": values, "m": [("k", values), ("l", None)]}, {"id": 2, "m": []}]
    with made.opened() as table:
        table.append(pa.Table.from_pylist(rows, schema))
        for column in ("s", "m.value"):
            with table.refresh().update_schema() as change:
                change.rename_column(f"{column}.a", "x")
                change.rename_column(f"{column}.b", "a")
                change.delete_column(f"{column}.c")
            with table.refresh().update_schema() as change:
                change.add_column((*column.split("."), "c"), table.schema().find_type("id"))
        by_library = table.refresh().scan().to_arrow().to_pylist()
    now = pa.struct([("x", pa.int64()), ("a", pa.int64()), ("c", pa.int64())])
    then = {"x": 10, "a": 20, "c": None}
    expected = [
        {"id": 1, "s": then, "m": [("k", then), ("l", None)]},
        {"id": 2, "s": None, "m": []},
    ]
    assert by_library == expected
    columns = pa.schema([("id", pa.int64()), ("s", now), ("m", pa.map_(pa.string(), now))])
    assert read(iceberg(tmp_path), columns) == expected


def test_parts_without_a_value_from_any_row_on(tmp_path: Path) -> None:
    """Arrow writes them without a type."""
    part = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    schema = pa.schema([("id", pa.int64()), ("s", part)])
    rows = pa.Table.from_pylist([{"id": n, "s": {"a": n, "b": None}} for n in (1, 2, 3)])
    with iceberg_table.Table(tmp_path, schema).opened() as table:
        migrate(table, tmp_path / "old.parquet", rows)
        with table.refresh().update_schema() as change:
            change.rename_column("s.a", "x")
    now = pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int64()), ("b", pa.int64())]))])
    expected = [{"id": n, "s": {"x": n, "b": None}} for n in (1, 2, 3)]
    assert read(iceberg(tmp_path), now, 1) == expected


def test_a_file_whose_columns_are_not_told(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    made = iceberg_table.Table(tmp_path, schema)
    with made.opened() as table:
        migrate(table, tmp_path / "old.parquet", pa.table({"id": [1]}), **{MAPPING: "[]"})
    with pytest.raises(BadRowError, match=r"no ids of columns, and the table no name mapping"):
        read(iceberg(tmp_path), schema)


def source_of(folder: Path, kind: str, rows: pa.Table, schema: pa.Schema) -> Any:
    """Returns a table with a file that another program has written."""
    if kind == "iceberg":
        with iceberg_table.Table(folder, schema).opened() as table:
            migrate(table, folder / "old.parquet", rows)
        return iceberg(folder)
    made = delta_table.Table(folder, schema)
    pq.write_table(rows, file := made.folder / "old.parquet")
    add = AddAction(file.name, file.stat().st_size, {}, 0, True, '{"numRecords": 2}')
    made.now.create_write_transaction([add], "append", made.now.schema())
    return sources.delta(str(made.folder))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_name_is_spelled_in_another_way(tmp_path: Path, kind: str) -> None:
    """As Spark, which ignores case. Failed before: null."""
    schema = pa.schema([("id", pa.int64())])
    source = source_of(tmp_path, kind, pa.table({"ID": [1, 2]}), schema)
    assert read(source, schema) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_dates_and_times_of_spark_2(tmp_path: Path, kind: str) -> None:
    """Failed before: 0000-12-30 and 1500-01-08, and times of another calendar."""
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    spark = schema.with_metadata({b"org.apache.spark.legacyDateTime": b""})
    days = pa.array([-719_164, -171_657], pa.int32()).cast(pa.date32())
    times = pa.array([0, None], pa.timestamp("us"))
    rows = pa.table([pa.array([1, 2]), days, times], schema=spark)
    found = read(source_of(tmp_path / "a", kind, rows, schema), schema)
    assert [str(row["day"]) for row in found] == ["0001-01-01", "1499-12-30"]
    old = pa.array([datetime(1500, 1, 1), None], pa.timestamp("us"))
    rows = pa.table([pa.array([1, 2]), days, old], schema=spark)
    with pytest.raises(BadRowError, match="before 1900-01-01 in the calendar of Spark 2"):
        read(source_of(tmp_path / "b", kind, rows, schema), schema)
