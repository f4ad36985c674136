"""Examples that users copy (pages, pipelines, the demo) import from the public face only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dagster_jet

ROOT = Path(dagster_jet.__file__).parents[1]
FACE = {
    "dagster_jet",
    "dagster_jet.connector_kit",
    "dagster_jet.contract",
    "dagster_jet.dag",
    "dagster_jet.testing",
    "dagster_jet.events",
}
"""Modules of the public face; those that `from dagster_jet import ...` gives count as well."""
EXAMPLES = ("README.md", "definitions.py", "docs", "pipelines", "resources", "demo")
_IMPORT = re.compile(
    r"^\s*(?:>>> )?(?:from (dagster_jet[\w.]*) import|import (dagster_jet[\w.]*))", re.M
)


def written() -> Iterator[Path]:
    for name in EXAMPLES:
        place = ROOT / name
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (path for path in found if path.suffix in {".md", ".py"})


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in written()])
def test_examples_import_from_the_face_only(page: str) -> None:
    imports = _IMPORT.findall((ROOT / page).read_text(encoding="utf-8"))
    assert {module or other for module, other in imports} <= FACE


def test_examples_are_looked_at() -> None:
    pages = list(written())
    assert sum(bool(_IMPORT.search(page.read_text(encoding="utf-8"))) for page in pages) > 10
