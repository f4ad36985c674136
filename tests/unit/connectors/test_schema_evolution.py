"""A sink with rows of more columns, or of wider types, than its table has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from dagster_jet import sinks
from dagster_jet.contract import Sink
from dagster_jet.errors import ConfigurationError, PipelineError

from . import delta_table, iceberg_table
from .delta_table import SCHEMA, by, rows, stage

MORE = pa.schema([*SCHEMA, pa.field("n", pa.int64())])


def begin(sink: Sink, schema: pa.Schema) -> None:
    frame: Any = SimpleNamespace(schema=from_arrow_schema(schema, prefer_timestamp_ntz=True))
    sink.check_columns(frame, "j", "out")
    sink.claim_place("j", "out")


def commit(sink: Sink, artifacts: Any, execution: int = 1) -> None:
    committer: Any = sink.open_committer("j", "out")
    with closing(committer):
        committer.commit(artifacts, by(execution))


def more(*ids: int) -> pa.RecordBatch:
    before = rows(*ids)
    return pa.RecordBatch.from_arrays([*before.columns, pa.array(ids, pa.int64())], schema=MORE)


@pytest.mark.parametrize("kind", [delta_table, iceberg_table])
def test_old_rows_read_null(tmp_path: Path, kind: Any) -> None:
    table = kind.Table(tmp_path / "lake")
    before = table.sink()
    begin(before, SCHEMA)
    commit(before, stage(before, rows(1)))
    late = stage(before, rows(2), epoch=2)
    with pytest.raises(PipelineError, match=r"no column 'n'.*schema_evolution"):
        begin(table.sink(), MORE)
    after = table.sink(schema_evolution="extend")
    begin(after, MORE)
    commit(after, late, 2)  # what the job had staged before
    commit(after, stage(after, more(3), epoch=3, execution=2), 2)
    found = {row["id"]: row.get("n") for row in kind.by_library(read_at(table))}
    assert found == {1: None, 2: None, 3: 3} and table.ids() == [1, 2, 3]
    again = table.sink(schema_evolution="extend")
    begin(again, MORE)
    commit(again, stage(again, more(4), epoch=4, execution=3), 3)
    assert table.ids() == [1, 2, 3, 4]


def read_at(table: Any) -> Any:
    return str(table.folder) if isinstance(table, delta_table.Table) else table.folder


def test_an_upsert_of_more_columns(tmp_path: Path) -> None:
    table = delta_table.Table(tmp_path)
    before = table.sink(mode="upsert", key="id")
    begin(before, SCHEMA)
    commit(before, stage(before, rows(1, 2)))
    late = stage(before, rows(3), epoch=2)
    after = table.sink(mode="upsert", key="id", schema_evolution="extend")
    begin(after, MORE)
    commit(after, [*late, *stage(after, more(2), epoch=3, execution=2)], 2)
    found = {row["id"]: row["n"] for row in delta_table.by_library(str(table.folder))}
    assert found == {1: None, 2: 2, 3: None} and table.ids() == [1, 2, 3]


def test_types_are_widened_where_the_format_allows_it(tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.int32()), ("x", pa.float32()), ("m", pa.decimal128(5, 2))])
    wide = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("m", pa.decimal128(9, 2))])
    table = iceberg_table.Table(tmp_path, narrow, by=(("id", "bucket[4]"),))
    before = table.sink()
    begin(before, narrow)
    one = {"id": 1, "x": 0.5, "m": None}
    commit(before, stage(before, pa.RecordBatch.from_pylist([one], narrow)))
    after = table.sink(schema_evolution="extend")
    begin(after, wide)
    other = {"id": 1 << 40, "x": 1e200, "m": None}
    commit(after, stage(after, pa.RecordBatch.from_pylist([other], wide), epoch=2), 2)
    with table.opened() as opened:
        for row in (one, other):
            chosen = opened.scan(row_filter=f"id == {row['id']}").to_arrow()
            assert chosen.to_pylist() == [row]
        assert opened.scan(row_filter="x == 0.5").to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (delta_table, pa.int32()),
        (delta_table, pa.string()),
        (iceberg_table, pa.int32()),
        (iceberg_table, pa.string()),
    ],
)
def test_other_types_stop_the_start(tmp_path: Path, kind: Any, other: pa.DataType) -> None:
    table = kind.Table(tmp_path / "lake")
    columns = pa.schema([("id", other), ("text", pa.string()), ("day", pa.date32())])
    with pytest.raises(PipelineError, match="the column 'id' is"):
        begin(table.sink(schema_evolution="extend"), columns)
    spelled = pa.schema([*SCHEMA, ("Text", pa.string())])
    with pytest.raises(PipelineError, match="no column 'Text', but 'text'"):
        begin(table.sink(schema_evolution="extend"), spelled)


def test_a_word_that_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="schema_evolution: 'merge' is unknown"):
        sinks.delta(str(tmp_path), schema_evolution="merge")
