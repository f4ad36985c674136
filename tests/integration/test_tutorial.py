"""The tutorial does what it says, from an empty folder, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) == 4
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        # Blank lines in front: a traceback names the line of the page.
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), names)
    assert len(names["results"]()) == 2
