"""Two definitions differ where their output may, and are equal in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dagster_jet import Pipeline, Secret, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.pipeline.definition_digest import digest

LIMIT = 3
CODES = {"a": 1}


def helper(value: Any) -> Any:
    return value


def keeps(limit: int) -> Callable[[Any], Any]:
    def function(frame: Any) -> Any:
        return helper(frame.where(f"v > {limit + LIMIT}"))

    return function


def shop(
    *,
    condition: str = "v > 1",
    out: str = "/out",
    lag: str = "1 second",
    function: Callable[[Any], Any] | None = None,
    schema: str = "k string, at timestamp, v double",
) -> Pipeline:
    p = Pipeline("shop")
    rows = p.read_from(sources.files("/in", format="json", schema=schema), name="rows")
    timed = rows.with_timestamps("at", allowed_lag=lag)
    large = timed.filter(condition, name="large").transform(function or keeps(1), name="own")
    sums = large.group_by("k").window(windows.tumbling("1 hour"))
    sums.aggregate(total=agg.sum("v"), name="sums").write_to(
        sinks.files(out, format="json"), name="out"
    )
    timed.write_to(sinks.files("/copy", format="json"), name="copy")
    return p


def of(pipeline: Pipeline, stage: str | None = None) -> str:
    return pipeline.graph.definition(stage)


@pytest.mark.parametrize(
    ("change", "changes_copy"),
    [
        ({"condition": "v > 2"}, False),
        ({"out": "/elsewhere"}, False),
        ({"function": keeps(2)}, False),
        ({"function": lambda frame: frame}, False),
        ({"lag": "2 seconds"}, True),
        ({"schema": "k string, at timestamp, v float"}, True),
    ],
)
def test_a_change_is_one_of_what_is_behind_it(change: dict[str, Any], changes_copy: bool) -> None:
    before, after = shop(), shop(**change)
    assert before.graph.fingerprint() == after.graph.fingerprint(), "the stages do not show it"
    assert of(before) != of(after)
    assert of(before, "out") != of(after, "out")
    assert (of(before, "copy") != of(after, "copy")) is changes_copy


def test_what_is_defined_twice_is_equal() -> None:
    assert of(shop()) == of(shop(function=keeps(1)))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    return partial(_module, tmp_path, monkeypatch)


def _module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "own_code"
) -> ModuleType:
    """Loaded from a file, as a code location loads it."""
    path = tmp_path / f"{digest(text)}.py"
    path.write_text(text, encoding="utf-8")
    found = ModuleType(name)
    found.__file__ = str(path)
    monkeypatch.setitem(sys.modules, name, found)
    exec(compile(text, str(path), "exec", dont_inherit=True), found.__dict__)
    return found


CODE = """
LIMIT = 3

class Rule:
    def holds(self, row):
        return row["v"] > LIMIT

def helper(row):
    return Rule().holds(row)

def function(state, row):
    return row if helper(row) else None
"""


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ("LIMIT = 3", "LIMIT = 4", True),
        ('row["v"] >', 'row["v"] >=', True),
        ("return row if", "return None if", True),
        ("    return row if", '    """Says so."""\n    return row if', False),
        ("def helper", "# a comment\n\n\ndef helper", False),
        ("return row if helper(row) else None", "return (row if helper(row)\n  else None)", False),
    ],
)
def test_code_counts_and_how_it_is_written_does_not(
    old: str, new: str, changes: bool, module: Callable[..., ModuleType]
) -> None:
    assert old in CODE
    before, after = (digest(module(text).function) for text in (CODE, CODE.replace(old, new)))
    assert (before != after) is changes


def test_the_file_and_its_place_do_not_count(module: Callable[..., ModuleType]) -> None:
    here, there = (module(CODE, name).function for name in ("own_code", "moved_code"))
    assert digest(here) == digest(there)


def test_code_without_source_counts_by_its_instructions() -> None:
    def made(text: str) -> Any:
        names: dict[str, Any] = {}  # so it has no module
        exec(text, names)
        return names["f"]

    assert digest(made("f = lambda row: row + 1")) == digest(made("f = lambda row: row + 1"))
    assert digest(made("f = lambda row: row + 1")) != digest(made("f = lambda row: row + 2"))


def test_a_function_that_calls_itself_has_an_end() -> None:
    def again(n: int) -> int:
        return n and again(n - 1)

    assert digest(again) == digest(again)


def test_arguments_count() -> None:
    assert digest(partial(helper, 1)) != digest(partial(helper, 2))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_no_password_counts() -> None:
    def to(url: str | Secret) -> str:
        p = Pipeline("p")
        rows = p.read_from(sources.sequence(rate=1), name="rows")
        rows.write_to(sinks.sql(url, table="t"), name="out")
        return of(p)

    assert to(Secret(env="A")) != to(Secret(env="B")), "the names do"


def test_all_processes_agree() -> None:
    """Other seeds of hashes give the same digest; it has no hash or address in it."""
    script = (
        "from tests.unit.pipeline.test_definition_digest import *\n"
        "p = shop()\n"
        "print(of(p), digest([{'b', 'a', 'c'}, keeps, frozenset('xyz'), object()]))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {
        f"{of(shop())} {digest([{'b', 'a', 'c'}, keeps, frozenset('xyz'), object()])}\n"
    }


def test_settings_of_a_node_count() -> None:
    graph = shop().graph
    node = graph["sums"]
    assert digest(node) != digest(replace(node, keys=("v",)))  # type: ignore[call-arg]
