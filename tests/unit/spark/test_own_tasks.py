"""Every function of ours that Spark runs in a task is an `OwnTask`: searched in the source."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dagster_jet
from dagster_jet.errors import UserFunctionError
from dagster_jet.system.own_task import OwnTask, TaskError, handed_over

PACKAGE = Path(dagster_jet.__file__).parent
RUNS_IN_TASKS = {
    *("mapInArrow", "mapInPandas", "applyInArrow", "applyInPandas", "applyInPandasWithState"),
    *("transformWithState", "transformWithStateInPandas", "cogroup", "foreachPartition", "foreach"),
    *(
        "mapPartitions",
        "mapPartitionsWithIndex",
        "runJob",
        "udf",
        "pandas_udf",
        "arrow_udf",
        "udtf",
    ),
}
TRAVELS_AS_A_WHOLE = PACKAGE / "spark" / "cluster" / "versions.py"
"""Module whose task runs where this package is missing, or another version: it may need nothing of
ours."""


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            if name in RUNS_IN_TASKS:
                yield node


def test_whatever_runs_in_a_task_says_whose_error_it_is() -> None:
    found, bare = 0, []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == TRAVELS_AS_A_WHOLE:
            continue
        for call in calls(path):
            found += 1
            first = call.args[0] if call.args else None
            name = first.func.id if isinstance(first, ast.Call) else None  # type: ignore[attr-defined]
            if name != OwnTask.__name__:
                bare.append(f"{path.relative_to(PACKAGE)}:{call.lineno}")
    assert not bare
    assert found >= 10


def test_a_function_that_ends_the_process_is_named() -> None:
    def ends(batches: Iterable[Any]) -> Iterator[Any]:
        yield sys.exit(3)

    with pytest.raises(TaskError) as raised:
        list(OwnTask(ends, "counts")([]))
    error = handed_over(f"{TaskError.__module__}.TaskError: {raised.value}", "j")
    assert isinstance(error, UserFunctionError) and error.stage == "counts"
    assert re.search(r"test_own_tasks\.py:\d+ `yield sys.exit\(3\)`: .*SystemExit\(3\)", str(error))
