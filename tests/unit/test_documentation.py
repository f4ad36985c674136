"""Examples in pages and docstrings are run, so that they stay true."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs"
DOCSTRINGS = [
    "dagster_jet.core.dag",
    "dagster_jet.core.edge",
    "dagster_jet.core.emitter",
    "dagster_jet.core.event_time",
    "dagster_jet.engine.local.job",
    "dagster_jet.testing.verify_processor",
]


@pytest.mark.parametrize("page", ["processors.md"])
def test_the_python_of_a_page_runs_from_top_to_bottom(page):
    text = (PAGES / page).read_text(encoding="utf-8")
    names: dict = {}
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert blocks
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        # Blank lines in front: a traceback names the line of the page.
        exec(compile("\n" * line + block[1], str(PAGES / page), "exec"), names)


@pytest.mark.parametrize("module", DOCSTRINGS)
def test_the_examples_of_a_docstring(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted and not results.failed
