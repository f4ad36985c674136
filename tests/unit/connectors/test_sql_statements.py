"""Statements into databases that have no COPY."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy

from dagster_jet.connectors.sql.place import SqlPlace
from dagster_jet.connectors.sql.row_writer import write_rows


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_column_may_begin_as_those_of_former_keys_do(tmp_path: Path, mode: str) -> None:
    url = f"sqlite:///{tmp_path}/rows.db"
    engine = sqlalchemy.create_engine(url)
    rows = pa.record_batch({"id": [1], "jet_old_z": ["v"]})
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table t (id int primary key, jet_old_z text)"))
        write_rows(connection, SqlPlace(url, "t"), mode, ["id"], [rows])
        written = connection.execute(sqlalchemy.text("select * from t")).all()
    engine.dispose()
    assert written == [(1, "v")]


def test_a_key_that_begins_so_is_moved(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/rows.db"
    engine = sqlalchemy.create_engine(url)
    move = pa.RecordBatch.from_arrays([pa.array(["new"]), pa.array(["old"])], ["jet_old_z"] * 2)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table t (jet_old_z text primary key, n int)"))
        connection.execute(sqlalchemy.text("insert into t values ('old', 7)"))
        assert write_rows(connection, SqlPlace(url, "t"), "move", ["jet_old_z"], [move]) == 1
        moved = connection.execute(sqlalchemy.text("select * from t")).all()
    engine.dispose()
    assert moved == [("new", 7)]
