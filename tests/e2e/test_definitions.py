"""The commands a new user types first, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long import long

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["dg", "check", "defs"],
        pytest.param(["dagster", "definitions", "validate"], marks=long),
        pytest.param(
            ["dagster", "definitions", "validate", "--workspace", "workspace.yaml"], marks=long
        ),
    ],
    ids=" ".join,
)
def test_definitions_load(command: list[str]) -> None:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


PLAIN = """\
import dagster as dg

@dg.asset
def one(): ...

@dg.definitions
def defs():
    return dg.Definitions(assets=[one], jobs=[dg.define_asset_job("airport_delays_job", [one])])
"""
LOAD = """\
import resource
import definitions
repository = definitions.defs().get_repository_def()
assert repository.get_job("airport_delays_job")
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


@long  # they load above
def test_definitions_load_in_a_few_times_of_dagsters_own(tmp_path: Path) -> None:
    """Compared with a project that has nothing of ours, because a busy machine slows down both.
    Measured: 0.8 and 2.1 s of CPU; `load_from_defs_folder` looks at every name of this package;
    without it, 1.4 s."""
    (tmp_path / "definitions.py").write_text(PLAIN, encoding="utf-8")
    plain, ours = (
        float(
            subprocess.run(
                [sys.executable, "-c", LOAD],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(folder), "JET_DATA": str(tmp_path / "data")},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for folder in (tmp_path, REPOSITORY)
    )
    assert ours < 3.5 * plain, f"{ours:.1f} s; {plain:.1f} s without us"
