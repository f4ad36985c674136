"""The public names are pinned: a name that appears, vanishes or changes is a decision."""

from __future__ import annotations

import ast
import difflib
import inspect
from types import ModuleType
from typing import get_args

import pytest
from dagster_shared.libraries import DagsterLibraryRegistry

import dagster_jet
from dagster_jet import (
    JetResource,
    JobConfig,
    aggregates,
    errors,
    events,
    job_config,
    sinks,
    sources,
    tables,
    windows,
)
from dagster_jet.orchestration import resource as resource_module
from tests.unit.face.public_surface import PINNED, surface


def test_the_public_surface_is_what_is_pinned() -> None:
    pinned = PINNED.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(pinned, surface(), "pinned", "now", lineterm="", n=0))
    assert not changes, "\n".join(
        [
            *changes,
            "If it is meant: python -m tests.unit.face.public_surface",
        ]
    )


@pytest.mark.parametrize(
    "module", [dagster_jet, aggregates, sinks, sources, tables, windows], ids=lambda m: m.__name__
)
def test_every_name_of_the_face_can_be_had_and_is_shown(module: ModuleType) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))


def test_all_errors_and_all_events_are_there() -> None:
    raised = {
        n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)
    }
    assert raised <= set(dagster_jet.__all__)
    assert {event.__name__ for event in get_args(events.JobEvent)} <= set(events.__all__)


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (job_config, list(JobConfig.model_fields)),
        (resource_module, [*JetResource.model_fields, "pyspark"]),
    ],
    ids=["job", "resource"],
)
def test_type_checkers_know_every_setting(module: ModuleType, known: list[str]) -> None:
    """An `__init__` is written out for them alone."""
    source = ast.parse(inspect.getsource(module))
    for_checkers = (
        node
        for node in ast.walk(source)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    (written,) = (
        one for node in for_checkers for one in node.body if isinstance(one, ast.FunctionDef)
    )
    assert [argument.arg for argument in written.args.kwonlyargs] == known


def test_dagster_shows_our_version_with_the_code_location() -> None:
    assert JetResource.__name__  # loads what registers
    assert DagsterLibraryRegistry.get().get("dagster-jet") == dagster_jet.__version__
