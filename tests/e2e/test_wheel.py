"""What users install: the wheel, built as `pip` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import dagster_jet

REPOSITORY = Path(__file__).parents[2]
PROJECT = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    place = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([sys.executable, *build, "-w", str(place), str(REPOSITORY)], check=True)
    (built,) = place.iterdir()
    return zipfile.ZipFile(built)


def test_it_has_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """No `pipelines`, `resources` or `tests` that would hide a user's own."""
    names = wheel.namelist()
    about = f"dagster_jet-{dagster_jet.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"dagster_jet", about}
    written = {path for path in (REPOSITORY / "dagster_jet").rglob("*") if path.is_file()}
    ours = {str(p.relative_to(REPOSITORY)) for p in written if p.parent.name != "__pycache__"}
    assert {name for name in names if not name.startswith(about)} == ours


def test_it_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "dagster_jet/py.typed" in wheel.namelist()


def test_it_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    """One version, in the package, in its metadata and in the project."""
    about = f"dagster_jet-{dagster_jet.__version__}.dist-info"
    metadata = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
    assert metadata["Version"] == dagster_jet.__version__
    assert f'\nversion = "{dagster_jet.__version__}"\n' in PROJECT
    (source,) = re.findall(r'^Source = "(.+)"$', PROJECT, re.MULTILINE)
    assert metadata["Project-URL"] == f"Source, {source}"
    assert metadata["Description-Content-Type"] == "text/markdown"
    entry_points = wheel.read(f"{about}/entry_points.txt").decode()
    assert "[dagster_dg_cli.registry_modules]\ndagster_jet = dagster_jet\n" in entry_points
