"""The package names no column of its own that a user may name, too."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import dagster_jet
from dagster_jet.core.reserved_columns import RESERVED_COLUMNS

NO_COLUMNS = {"__debezium_unavailable_value", "__named_schemas"}


def test_the_columns_of_the_package_are_reserved() -> None:
    found: set[str] = set()
    for path in Path(dagster_jet.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value.removesuffix(".*")
                if re.fullmatch(r"__[a-z_]*[a-z]", name):
                    found.add(name)
    assert found - NO_COLUMNS == RESERVED_COLUMNS
