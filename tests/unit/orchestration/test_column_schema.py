"""DDL strings as Dagster's columns."""

from __future__ import annotations

import pytest

from dagster_jet.orchestration.column_schema import columns_from_ddl


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("id long", [("id", "long", True)]),
        ("a string, b: double NOT NULL", [("a", "string", True), ("b", "double", False)]),
        (
            "p struct<x: int, y: array<map<string, int>>>, d decimal(10, 2)",
            [
                ("p", "struct<x: int, y: array<map<string, int>>>", True),
                ("d", "decimal(10, 2)", True),
            ],
        ),
        ("`odd, name` int, `tick``ed` int", [("odd, name", "int", True), ("tick`ed", "int", True)]),
        ("", []),
    ],
)
def test_columns(ddl: str, columns: list[tuple[str, str, bool]]) -> None:
    found = columns_from_ddl(ddl).columns
    assert [(c.name, c.type, c.constraints.nullable) for c in found] == columns


def test_comments_become_descriptions() -> None:
    (column,) = columns_from_ddl("eur double NOT NULL COMMENT 'gross, in euro'").columns
    assert (column.type, column.description) == ("double", "gross, in euro")
