"""Which rows a table of a SQL database takes, by its columns."""

from __future__ import annotations

import pyarrow as pa

from dagster_jet.connectors.sql.column_fit import Column, Shape, UniqueIndex


def test_a_key_that_postgres_always_numbers_is_refused_where_rows_change_keys() -> None:
    """A mirror moves a row to another key; PostgreSQL refuses any update of such a column."""
    number = Column("id", "integer", "bigint", size=64, takes_null=False, is_always_numbered=True)
    shape = Shape((number,), (UniqueIndex("key", frozenset({"id"})),))
    rows = {"id": pa.int64()}
    assert shape.misfit(rows, "upsert", ["id"]) is None
    said = shape.misfit(rows, "upsert", ["id"], changes_keys=True)
    assert said is not None and "always numbers id itself" in said
