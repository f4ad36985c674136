"""The commands a new user types first, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["dg", "check", "defs"],
        ["dagster", "definitions", "validate"],
        ["dagster", "definitions", "validate", "--workspace", "workspace.yaml"],
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
