"""Every operator has what `Operator` asks for, under the names that it asks for."""

from __future__ import annotations

import pkgutil
from difflib import get_close_matches
from importlib import import_module

import pytest

from dagster_jet import operators
from dagster_jet.operators.operator import Operator

CONTRACT = {name for name in vars(Operator) if not name.startswith("_")}


def implementations() -> list[type]:
    """In the order of their modules."""
    modules = [
        import_module(module.name)
        for module in pkgutil.walk_packages(operators.__path__, f"{operators.__name__}.")
    ]
    found = (value for module in modules for value in vars(module).values())
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Operator)]
    return [kind for kind in dict.fromkeys(kinds) if kind is not Operator]


@pytest.mark.parametrize("kind", implementations(), ids=lambda kind: kind.__name__)
def test_no_name_is_nearly_one_of_the_contract(kind: type) -> None:
    """A misspelt method would leave the default in force, silently."""
    own = {name for name in vars(kind) if not name.startswith("_")} - CONTRACT
    assert {name: near for name in own if (near := get_close_matches(name, CONTRACT, 1, 0.8))} == {}


@pytest.mark.parametrize("kind", implementations(), ids=lambda kind: kind.__name__)
def test_rows_are_shared_by_both_of_its_methods_or_by_none(kind: type) -> None:
    assert ("shares_rows" in vars(kind)) == ("shared_rows" in vars(kind))


def test_operators_are_looked_at() -> None:
    names = {kind.__name__ for kind in implementations()}
    assert {"IntervalJoin", "InEventOrder", "SessionWindows", "SparkProcessor"} <= names
