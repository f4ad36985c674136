"""Examples in pages and docstrings are run, so that they stay true."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import dagster_jet.processors
from dagster_jet.pipeline.stateful import StatefulNode

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


def test_every_operator_says_what_at_least_once_means():
    operators = [
        module
        for info in pkgutil.iter_modules(dagster_jet.processors.__path__, "dagster_jet.processors.")
        for module in [importlib.import_module(info.name)]
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
        if {"step", "merge", "dead_until"} <= vars(kind).keys()
        if not getattr(kind, "_is_protocol", False)
    ]
    kinds = {kind.kind: kind for kind in StatefulNode.__subclasses__()}
    assert len(operators) >= len(kinds) - 1, "windows and sessions are one kind of stage"
    silent = [o.__name__ for o in operators if "\n\nAt-least-once: " not in (o.__doc__ or "")]
    assert not silent
    page = (PAGES / "operators.md").read_text(encoding="utf-8")
    (section,) = re.findall(
        r"\n## What at-least-once means here\n(.*?)(?=\n## |\Z)", page, re.DOTALL
    )
    rows = {row.split("|")[1].strip(" `") for row in section.splitlines() if row.startswith("| `")}
    assert rows == kinds.keys() | {"enrich"}
