"""A project of `dg`, with this package installed: its component is listed, scaffolded, and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
PIPELINE = """\
from dagster_jet import Pipeline, sinks, sources


def shop(folder: str) -> Pipeline:
    p = Pipeline("shop")
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema="id long"), name="rows")
    rows.write_to(sinks.files(f"{folder}/out", format="json"), name="out")
    return p
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """As `create-dagster project` makes it."""
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


def test_listed_scaffolded_changed_and_run(project: Path, tmp_path: Path) -> None:
    (project / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    assert "dagster_jet.JetPipelineComponent" in run(project, "dg", "list", "components", "--json")
    run(project, "dg", "scaffold", "defs", "dagster_jet.JetPipelineComponent", "shop")
    run(project, "dg", "check", "defs")

    made = project / "src" / "lake" / "defs" / "shop"
    (made / "pipeline.py").write_text(PIPELINE, encoding="utf-8")
    written = (made / "defs.yaml").read_text(encoding="utf-8")
    assert "sink:" in written
    (made / "defs.yaml").write_text(written.replace("sink:", "folder:"), encoding="utf-8")
    data = project / "data" / "shop"
    (data / "in").mkdir(parents=True)
    lines = [f'{{"id": {number}}}\n' for number in range(7)]
    (data / "in" / "a.json").write_text("".join(lines), encoding="utf-8")
    run(project, "dg", "launch", "--assets", "*")
    found = [path for path in (data / "out").glob("*.json") if path.is_file()]
    rows = [line for path in found for line in path.read_text("utf-8").splitlines(keepends=True)]
    assert sorted(line.replace(" ", "") for line in rows) == [
        line.replace(" ", "") for line in lines
    ]
