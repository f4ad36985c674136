"""What users install: the wheel, built from the sdist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import dagster_jet
from tests.e2e.test_component import DEFINITIONS
from tests.e2e.test_component import PROJECT as LAKE
from tests.long import long

REPOSITORY = Path(__file__).parents[2]
PROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
BUILD = [sys.executable, "-m", "build", str(REPOSITORY), "--outdir"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run([*BUILD, str(place)], check=True)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def empty_environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel and its declared dependencies. Returns its folder.

    The lock only says which versions: what is not declared is not installed.
    """
    place = tmp_path_factory.mktemp("empty")
    locked = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    versions = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?(==[^ ]+(?: ; .+)?) \\$", locked, re.MULTILINE)
    constraints = place / "constraints.txt"
    constraints.write_text("".join(f"{name}{version}\n" for name, version in versions))
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = ["-m", "pip", "install", "--quiet", "--no-compile", "-c", str(constraints)]
    subprocess.run([str(place / "bin" / "python"), *install, str(built)], check=True)
    return place


@pytest.fixture(scope="module")
def with_dg(empty_environment: Path) -> Path:
    """The same environment with `dg`, which is not declared."""
    install = ["-m", "pip", "install", "--quiet", "--no-compile", "dagster-dg-cli"]
    constraints = ["-c", str(empty_environment / "constraints.txt")]
    python = str(empty_environment / "bin" / "python")
    subprocess.run([python, *install, *constraints], check=True)
    return empty_environment


def run_in(environment: Path, folder: Path, *command: str) -> str:
    """Runs a command as in a new shell, outside the checkout. Returns its output."""
    kept = {k: v for k, v in os.environ.items() if k == "JAVA_HOME"}
    path = f"{environment / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**kept, "PATH": path, "HOME": str(folder)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """No `pipelines`, `resources` or `tests` that would hide a user's own."""
    names = wheel.namelist()
    about = f"dagster_jet-{dagster_jet.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"dagster_jet", about}
    written = {path for path in (REPOSITORY / "dagster_jet").rglob("*") if path.is_file()}
    ours = {str(p.relative_to(REPOSITORY)) for p in written if p.parent.name != "__pycache__"}
    assert {name for name in names if not name.startswith(about)} == ours


def test_the_checkout_builds_the_same_as_the_sdist(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    subprocess.run([*BUILD, str(tmp_path), "--wheel"], check=True)
    (path,) = tmp_path.iterdir()
    direct = zipfile.ZipFile(path)
    names = direct.namelist()
    assert sorted(names) == sorted(wheel.namelist())
    assert [name for name in names if direct.read(name) != wheel.read(name)] == []


def test_it_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "dagster_jet/py.typed" in wheel.namelist()


def test_it_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    """Its version is the package's, which is written in one place."""
    about = f"dagster_jet-{dagster_jet.__version__}.dist-info"
    metadata = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
    assert metadata["Version"] == dagster_jet.__version__
    assert dagster_jet.__version__ not in PROJECT
    (source,) = re.findall(r'^Source = "(.+)"$', PROJECT, re.MULTILINE)
    assert metadata["Project-URL"] == f"Source, {source}"
    assert metadata["Description-Content-Type"] == "text/markdown"
    entry_points = wheel.read(f"{about}/entry_points.txt").decode()
    assert "[dagster_dg_cli.registry_modules]\ndagster_jet = dagster_jet\n" in entry_points


def test_the_first_example_runs_with_what_is_declared(
    empty_environment: Path, tmp_path: Path
) -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    example, printed = re.findall(r"^```(?:python)?\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[
        :2
    ]
    script = tmp_path / "auctions.py"
    script.write_text(example.replace("/tmp/jet", str(tmp_path / "store")), encoding="utf-8")
    rows = re.compile(r"^│ .* │$", re.MULTILINE)
    said = run_in(empty_environment, tmp_path, "python", str(script))
    assert sorted(rows.findall(said)) == sorted(rows.findall(printed)) != []


def test_the_terminal_works_with_what_is_declared(empty_environment: Path, tmp_path: Path) -> None:
    assert "snapshots" in run_in(empty_environment, tmp_path, "dagster-jet", "--help")


@long
def test_a_component_is_scaffolded_and_loads(with_dg: Path, tmp_path: Path) -> None:
    """`test_component.py` also runs what is scaffolded, with the checkout."""
    made = tmp_path / "src" / "lake"
    (made / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(LAKE, encoding="utf-8")
    (made / "__init__.py").touch()
    (made / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    run_in(with_dg, tmp_path, "python", "-m", "pip", "install", "--quiet", "--no-deps", "-e", ".")
    run_in(with_dg, tmp_path, "dg", "scaffold", "defs", "dagster_jet.JetPipelineComponent", "x")
    run_in(with_dg, tmp_path, "dg", "check", "defs")
    assert "x/out" in run_in(with_dg, tmp_path, "dg", "list", "defs", "--json")
