"""Tests of the newest Dagster also pass on the oldest supported one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.long import long

REPOSITORY = Path(__file__).parents[2]
PINS = Path(__file__).with_name("oldest.txt")
NEWER = {
    "tests/unit/orchestration/test_asset_decorator.py"
    "::test_what_a_pipeline_may_be_called_becomes_a_name_that_dagster_takes": (
        "a key with a dot for an asset's input is refused before some 1.13"
    ),
    **{
        f"tests/unit/orchestration/test_cut_assets.py::{test}": (
            "there are no virtual assets and no checks of partitions before 1.13"
        )
        for test in (
            "test_hours_are_reported_once_the_watermark_is_past_them",
            "test_hours_after_a_rewind_are_sealed_once_more",
            "test_a_lost_cursor_repeats_what_is_sealed",
            "test_a_job_that_was_deleted_and_ran_again_has_versions_and_hours_of_its_own",
            "test_years_of_hours_come_in_portions",
            "test_what_is_downstream_runs_on_the_cut_and_on_sealed_hours",
            "test_no_hours_without_a_watermark",
        )
    },
}
"""Tests that fail on the oldest Dagster, each with the reason."""
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
FACE = [
    f"tests/unit/orchestration/test_{name}.py"
    for name in ("asset_decorator", "pipeline_component", "reporting", "sensor")
]
"""Tests of what uses most of Dagster's API."""
ON_SPARK = ["tests/e2e/test_materialize.py", "tests/e2e/test_partitions.py"]


def pinned() -> dict[str, str]:
    lines = PINS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def oldest() -> Path:
    """A folder with the oldest Dagster alone; everything else is this environment's."""
    digest = sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = REPOSITORY / ".cache" / f"dagster-oldest-{digest}"
    if not place.is_dir():
        place.parent.mkdir(exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=place.parent))
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run(
            [sys.executable, *install, "--target", str(staged), "-r", str(PINS)], check=True
        )
        try:
            staged.rename(place)
        except OSError:  # another test process was faster
            shutil.rmtree(staged)
    return place


def on(oldest: Path, *command: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(oldest), str(REPOSITORY))),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    return result.stdout + result.stderr


def test_the_oldest_is_what_is_tested_and_the_next_one_is_admitted() -> None:
    """A user may take a new Dagster on the day it is out; the lock follows."""
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    for package in ("dagster", "dagster-pyspark"):
        floor = re.findall(rf'"{package}>=([\d.]+)[,"]', project)[0]
        assert pinned()[package] == f"{floor}.0"
        (newest,) = re.findall(rf"^{package}==([\d.]+)", lock, re.M)
        assert _numbers(floor) <= _numbers(newest)
    assert re.findall(r'"dagster>=[\d.]+,<([\d.]+)"', project) == ["2"]


@pytest.mark.parametrize(
    "paths", [FACE, pytest.param(["tests/unit/orchestration"], marks=long)], ids=["face", "all"]
)
def test_definitions_components_materializations_and_ticks(oldest: Path, paths: list[str]) -> None:
    version = on(oldest, "-c", "import dagster; print(dagster.__version__)")
    assert version.strip() == pinned()["dagster"]
    newer = [test for test in NEWER if test.startswith(tuple(paths))]
    left_out = [f"--deselect={test}" for test in newer]
    said = on(oldest, *PYTEST, *left_out, *paths)
    assert " passed" in said and "failed" not in said
    assert f" {len(newer)} deselected" in said, "each is still there"


@long
def test_this_code_location_is_loaded(oldest: Path, tmp_path: Path) -> None:
    """A code server of the oldest Dagster loads this code location, as `dagster dev` starts it."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    said = on(oldest, "-m", "dagster", "definitions", "validate", DAGSTER_HOME=str(tmp_path))
    assert "Validation successful for code location jet" in said


@long
def test_streams_and_backfills_on_spark(oldest: Path) -> None:
    said = on(oldest, *PYTEST, *ON_SPARK)
    assert " passed" in said and "failed" not in said


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
