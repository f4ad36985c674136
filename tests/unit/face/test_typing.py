"""Type checkers help users: `py.typed` ships, and what is wrong is refused where it is written."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import dagster_jet
from tests.long import long

ROOT = Path(dagster_jet.__file__).parents[1]
SAMPLE = Path(__file__).with_name("typed_user.py")
STRICT = Path(__file__).with_name("strict_user.py")


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "dagster_jet" / "py.typed").is_file()


def test_a_type_checker_refuses_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    """The file is checked as a user's, without the rules that `make lint` relaxes for tests."""
    wanted = {
        (number, found[1])
        for number, line in enumerate(SAMPLE.read_text(encoding="utf-8").splitlines(), 1)
        if (found := re.search(r"# refused: ([\w-]+)$", line))
    }
    options = ["--strict", "--config-file=pyproject.toml"]  # of `make lint`: its cache serves
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, shutil.copy(SAMPLE, tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = re.findall(r"^\S*typed_user\.py:(\d+): error: .*\[([\w-]+)\]$", checked.stdout, re.M)
    assert {(int(line), code) for line, code in found} == wanted, checked.stdout


@long  # mypy is strict above
def test_an_editor_in_strict_mode_has_nothing_to_say(tmp_path: Path) -> None:
    settings = {
        "typeCheckingMode": "strict", "include": [str(STRICT)], "extraPaths": [str(ROOT)],
    }  # fmt: skip
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings), encoding="utf-8")
    options = ["-p", str(config), "--pythonpath", sys.executable, "--outputjson"]
    checked = subprocess.run(
        [sys.executable, "-m", "basedpyright", *options],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    found = json.loads(checked.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    assert found["generalDiagnostics"] == []
