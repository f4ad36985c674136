"""The connectors that the docs show are those that the suites check."""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("example", sorted((DOCS / "examples").glob("*.py")), ids=lambda p: p.name)
def test_the_docs_show_exactly_the_file(example: Path) -> None:
    page = (DOCS / "connectors.md").read_text("utf-8")
    assert f"```python\n{example.read_text('utf-8')}```\n" in page
