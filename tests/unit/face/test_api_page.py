"""The page of the API has a row for every public name of a class, and none for any other."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import dagster_jet
from dagster_jet import Jet, Job, Pipeline, Stage, aggregates, sinks, sources, tables, windows

PAGE = (Path(dagster_jet.__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")


def rows(title: str) -> list[str]:
    """The names in the first column below a title."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\| `(\w+)", section, re.MULTILINE)


@pytest.mark.parametrize("kind", [Jet, Job, Pipeline, Stage], ids=lambda kind: kind.__name__)
def test_every_public_name_has_a_row(kind: type) -> None:
    public = sorted(name for name in dir(kind) if not name.startswith("_"))
    assert sorted(rows(kind.__name__)) == public


@pytest.mark.parametrize("module", [aggregates, sinks, sources, tables, windows])
def test_every_function_of_a_module_has_a_row(module: ModuleType) -> None:
    """The first name of a row has its module; others of the same module may follow it."""
    short = module.__name__.rpartition(".")[2]
    named = [
        name
        for row in re.findall(rf"^\| (`{short}\..*?) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(?:\w+\.)?(\w+)", row)
    ]
    public = [name for name, value in vars(module).items() if is_public(module, name, value)]
    assert sorted(named) == sorted(public)


def is_public(module: ModuleType, name: str, value: object) -> bool:
    if name.startswith("_") or not inspect.isfunction(value):
        return False
    return f"{value.__module__}.".startswith(f"{module.__name__}.")


def test_the_face_stays_small() -> None:
    assert len(rows("Jet")) < 15
