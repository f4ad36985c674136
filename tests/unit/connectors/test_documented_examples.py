"""The connectors that the docs show are those that the suites check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dagster_jet
from dagster_jet import connector_kit
from dagster_jet.contract import Committer, Sink, SinkWriter, Source, SourceReader, Table

DOCS = Path(__file__).parents[3] / "docs"


CONNECTORS = ("sqlite_queue.py", "sqlite_table.py")


def test_every_other_example_is_named_by_a_page() -> None:
    others = {path.name for path in (DOCS / "examples").glob("*.py")} - set(CONNECTORS)
    pages = "".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    assert [name for name in sorted(others) if name not in pages] == []


@pytest.mark.parametrize(
    "base", [Source, SourceReader, Sink, SinkWriter, Committer, Table], ids=lambda b: b.__name__
)
def test_the_page_names_every_member_of_the_contract(base: type) -> None:
    members = {name for name in dir(base) if not name.startswith("_")}
    page = (DOCS / "connectors" / "own.md").read_text("utf-8")
    assert [name for name in sorted(members) if f"`{name}`" not in page] == []


def test_the_page_names_all_of_the_kit() -> None:
    page = (DOCS / "connectors" / "own.md").read_text("utf-8")
    assert [name for name in connector_kit.__all__ if f"`{name}`" not in page] == []


def test_the_page_names_no_inner_module() -> None:
    page = (DOCS / "connectors" / "own.md").read_text("utf-8")
    assert re.findall(r"\bconnectors\.[a-z]\w*", page) == []
    named = set(re.findall(r"\bdagster_jet\.([a-z]\w*)", page))
    assert named == {"connector_kit", "contract", "testing"}
    assert named <= set(dagster_jet.__all__)


@pytest.mark.parametrize(
    "example", [DOCS / "examples" / name for name in CONNECTORS], ids=lambda p: p.name
)
def test_the_docs_show_exactly_the_file(example: Path) -> None:
    page = (DOCS / "connectors" / "own.md").read_text("utf-8")
    assert f"```python\n{example.read_text('utf-8')}```\n" in page
