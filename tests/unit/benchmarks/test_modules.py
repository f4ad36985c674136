"""Benchmarks run rarely; that they can be imported is looked at always."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

import benchmarks

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
    if not info.name.endswith("__main__")
)


@pytest.mark.parametrize("name", [*MODULES, "benchmarks.__main__"])
def test_a_benchmark_can_be_imported(name: str) -> None:
    assert import_module(name).__doc__
