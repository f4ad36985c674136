"""The connectors that the docs show are those that the suites check."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


CONNECTORS = ("sqlite_queue.py", "sqlite_table.py")


def test_every_other_example_is_named_by_a_page() -> None:
    others = {path.name for path in (DOCS / "examples").glob("*.py")} - set(CONNECTORS)
    pages = "".join(page.read_text("utf-8") for page in DOCS.glob("*.md"))
    assert [name for name in sorted(others) if name not in pages] == []


@pytest.mark.parametrize(
    "example", [DOCS / "examples" / name for name in CONNECTORS], ids=lambda p: p.name
)
def test_the_docs_show_exactly_the_file(example: Path) -> None:
    page = (DOCS / "connectors.md").read_text("utf-8")
    assert f"```python\n{example.read_text('utf-8')}```\n" in page
