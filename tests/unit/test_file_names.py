"""A file's name says what is in it, and it fits on a few pages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dagster_jet


def test_no_file_name_stands_more_than_twice() -> None:
    package = Path(dagster_jet.__file__).parent
    found = Counter(path.name for path in package.rglob("*.py") if path.name != "__init__.py")
    assert {name: times for name, times in found.items() if times > 2} == {}


def test_no_file_has_more_than_500_lines() -> None:
    package = Path(dagster_jet.__file__).parent
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in package.rglob("*.py")}
    assert {path.name: count for path, count in lines.items() if count > 500} == {}
