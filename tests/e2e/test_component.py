"""A project of `dg`, with this package installed: two scaffolded components run unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long import long

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[2]
PROJECT = """\
[project]
name = "lake"
version = "0.1.0"
requires-python = ">=3.10"
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "lake"
"""
DEFINITIONS = """\
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Project made by `create-dagster project`."""
    root = tmp_path / "lake"
    defs = root / "src" / "lake" / "defs"
    defs.mkdir(parents=True)
    (defs / "__init__.py").touch()
    (defs.parent / "__init__.py").touch()
    (defs.parent / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    (root / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    return root


def run(project: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{project / 'src'}{os.pathsep}{REPOSITORY}",
        "DAGSTER_HOME": str(project),
    }
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


DEMO = """\
type: dagster_jet.JetPipelineComponent
attributes: {pipeline: "pipeline.py:cities", demo_mode: true}
"""
CITIES = """\
from dagster_jet import Pipeline, Secret, aggregates as agg, sinks, sources, windows

cities = Pipeline("cities")
rows = cities.read_from(
    sources.kafka(
        Secret("NOWHERE"), topics="rows", format="json",
        schema="at timestamp, city string, eur double, n int, day date, tags array<string>",
    ),
    name="rows",
).with_timestamps("at")
totals = rows.group_by("city").window(windows.tumbling("1 hour")).aggregate(
    rows=agg.count(), eur=agg.sum("eur"), name="totals"
)
totals.write_to(sinks.kafka(Secret("NOWHERE"), topic="totals"), name="out")
"""


def write_demo(project: Path) -> None:
    demo = project / "src" / "lake" / "defs" / "cities"
    demo.mkdir()
    (demo / "defs.yaml").write_text(DEMO, encoding="utf-8")
    (demo / "pipeline.py").write_text(CITIES, encoding="utf-8")


LOAD = """
import sys
from lake.definitions import defs

keys = defs().get_repository_def().asset_graph.get_all_asset_keys()
print(*sorted(key.path[-1] for key in keys))
print(*sorted({"dagster_jet.jet", "pandas", "pyspark"} & sys.modules.keys()))
"""


def test_a_code_server_loads_no_spark(project: Path) -> None:
    """Failed before: Dagster reads all public names of a package with components."""
    write_demo(project)
    assert run(project, "python", "-c", LOAD) == "out rows totals\ndagster_jet.jet\n"


@long  # one of them is in `test_wheel.py`, and what all three define is in the unit tests
def test_two_are_scaffolded_and_run_unchanged_beside_a_demo(project: Path) -> None:
    """The demo reads from and writes to a Kafka that is not there."""
    write_demo(project)
    (project / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    for name in ("shop", "bank"):
        run(project, "dg", "scaffold", "defs", "dagster_jet.JetPipelineComponent", name)
    run(project, "dg", "launch", "--assets", "*")
    assert (project / "demo" / "cities" / "out" / "_epochs").is_dir()
    for name in ("shop", "bank"):
        found = [path for path in (project / "data" / name).glob("*.json") if path.is_file()]
        lines = [line for path in found for line in path.read_text("utf-8").splitlines()]
        numbers = sorted(json.loads(line)["value"] for line in lines)
        assert numbers == list(range(len(numbers))) != [], "what was there when the run began"
