"""Every function of ours that Spark runs in a task is an `OwnTask`: searched in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dagster_jet
from dagster_jet.system.own_task import OwnTask

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
"""Its task runs where this package is missing, or another: nothing of ours can be around it."""


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
