"""Tables of a lake to enrich a stream with: the newest version, or always the same one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dagster_jet import tables
from dagster_jet.errors import SourceError
from tests.unit.connectors import delta_table, iceberg_table
from tests.unit.connectors.iceberg_rows import NAME, options_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_version_of_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    made = delta_table.Table(tmp_path, partition_by=["day"])

    def ids(version: int | None = None) -> list[int]:
        table = tables.delta(str(made.folder), version=version)
        table = table.at_start("j", "look", on_one_host=True)
        return sorted(row["id"] for row in table.frame(spark).collect())

    assert ids() == []
    made.append(1, 2)
    first = made.now.version()
    made.now.alter.add_columns(delta_table.deltalake.Field("n", "long"))
    made.append(3)
    made.now.delete("id = 1")
    assert ids() == [2, 3] and ids(first) == [1, 2]
    then = tables.delta(str(made.folder), version=first).frame(spark)
    assert then.columns == ["id", "text", "day"]
    with pytest.raises(SourceError, match=r"cannot be read.*version"):
        ids(99)
    with pytest.raises(SourceError, match=r"stage 'look': there is no table"):
        tables.delta(str(tmp_path / "no")).at_start("j", "look", on_one_host=True)


def test_a_snapshot_of_an_iceberg_table(spark: SparkSession, tmp_path: Path) -> None:
    made, place = iceberg_table.Table(tmp_path), options_at(tmp_path)

    def table(snapshot: int | None = None) -> Any:
        found = tables.iceberg("lake", NAME, snapshot=snapshot, catalog_options=place)
        return found.at_start("j", "look", on_one_host=True)

    def ids(snapshot: int | None = None) -> list[int]:
        return sorted(row["id"] for row in table(snapshot).frame(spark).collect())

    assert ids() == []
    made.append(1, 2)
    with made.opened() as opened:
        first = opened.metadata.current_snapshot_id
        with opened.update_schema() as update:
            update.union_by_name(pa.schema([("n", pa.int64())]))
    made.append(3)
    with made.opened() as opened:
        opened.delete("id == 1")
    assert ids() == [2, 3] and ids(first) == [1, 2]
    assert table(first).frame(spark).columns == ["id", "text", "day"]
    with pytest.raises(SourceError, match="has no snapshot 7"):
        ids(7)
